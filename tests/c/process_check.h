/* process_check.h - for tests that start processes: nothing of them may be left behind;
 * and what they write, caught. */
#ifndef TESTS_PROCESS_CHECK_H
#define TESTS_PROCESS_CHECK_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/process.h"

static inline int open_fds(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* Whatever a test does, descriptors, memory and children are as before. */
static int fds_before;
static size_t bytes_before;

static inline int remember(void **state)
{
    (void)state;
    fds_before = open_fds();
    bytes_before = rle_mem_bytes();
    return 0;
}

static inline int compare(void **state)
{
    (void)state;
    assert_int_equal(open_fds(), fds_before);
    assert_int_equal(rle_mem_bytes(), bytes_before);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    return 0;
}

static inline size_t read_everything(int fd, char *to, size_t size)
{
    size_t used = 0;
    fcntl(fd, F_SETFL, 0);
    ssize_t n;
    while ((n = read(fd, to + used, size - used)) > 0) used += (size_t)n;
    return used;
}

/* Run as a child, this program writes its handoff (see main). */
typedef struct capture {
    int saved, file;
} capture;

static inline void capture_begin(capture *c, int fd)
{
    char path[] = "/tmp/rle-test-XXXXXX";
    fflush(NULL);
    c->saved = dup(fd);
    c->file = mkstemp(path);
    unlink(path);
    dup2(c->file, fd);
}

static inline void capture_end(capture *c, int fd, char *text, size_t size)
{
    dup2(c->saved, fd);
    close(c->saved);
    lseek(c->file, 0, SEEK_SET);
    text[read_everything(c->file, text, size - 1)] = 0;
    close(c->file);
}

/* In a process that was started: its handoff is a shell script. Returns when there is
 * none. */
static inline int run_handoff(void)
{
    size_t size;
    const char *script = rle_handoff_take(&size);
    if (script) execl("/bin/sh", "sh", "-c", script, NULL);
    return 126;
}

#define TRAINER(script)                                                                  \
    {                                                                                    \
        .name = "agent_0", .role = "trainer", .primary = true, .handoff = script         \
    }
#define OBSERVER(script)                                                                 \
    {                                                                                    \
        .name = "obs_0_for_0", .role = "observer", .handoff = script                     \
    }

#endif
