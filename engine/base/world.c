/* world.c - the real world: getrandom(2), getpid(2). */
#include "base/world.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

const rle_world *rle_world_simulated;

rle_status rle_entropy(void *out, size_t size)
{
    if (rle_simulated()) {
        rle_world_simulated->random(out, size);
        return RLE_OK;
    }
    unsigned char *p = out;
    while (size) {
        ssize_t got = getrandom(p, size, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return rle_fail(RLE_UNAVAILABLE, "no random bytes: %s", strerror(errno));
        p += got;
        size -= (size_t)got;
    }
    return RLE_OK;
}

pid_t rle_process_number(void)
{
    return rle_simulated() ? rle_world_simulated->pid() : getpid();
}

void rle_send_signal(pid_t pid, int number)
{
    if (rle_simulated())
        rle_world_simulated->signal(pid, number);
    else
        kill(pid, number);
}

pid_t rle_collect(pid_t pid, int *status)
{
    if (!rle_simulated()) return waitpid(pid, status, WNOHANG);
    return rle_world_simulated->ended(pid, status) ? pid : 0;
}

bool rle_is_there(const char *path)
{
    return rle_simulated() ? rle_world_simulated->marked(path) : access(path, F_OK) == 0;
}

/* The linker's names for the ends of the section, which is there although a program may have
 * nothing else in it. */
static RLE_PER_PROCESS char nothing __attribute__((used));
extern char section_begin[] __asm__("__start_rle_process")
    __attribute__((visibility("hidden")));
extern char section_end[] __asm__("__stop_rle_process")
    __attribute__((visibility("hidden")));

void rle_process_section(void **begin, size_t *size)
{
    *begin = section_begin;
    *size = (size_t)(section_end - section_begin);
}
