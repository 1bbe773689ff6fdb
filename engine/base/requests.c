/* requests.c - see requests.h; and asking, from the other end. */
#include "base/requests.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/supervisor.h"
#include "base/world.h"

rle_status rle_requests_open(rle_requests *r, const char *path)
{
    *r = (rle_requests){.fd = -1, .path = path};
    /* Open for writing, too: it is never at its end while nobody else has it open. */
    if (mkfifo(path, 0600) == 0)
        r->fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    if (r->fd < 0)
        return rle_fail(RLE_UNAVAILABLE, "cannot make %s: %s", path, strerror(errno));
    return RLE_OK;
}

void rle_requests_read(rle_requests *r, void (*obey)(void *self, char *line), void *self)
{
    char buffer[512];
    ssize_t n = read(r->fd, buffer, sizeof buffer);
    for (ssize_t i = 0; i < n; i++) {
        if (buffer[i] == '\n') {
            r->line[r->used] = 0;
            obey(self, r->line);
            r->used = 0;
        } else if (r->used < sizeof r->line - 1) {
            r->line[r->used++] = buffer[i];
        }
    }
}

void rle_requests_close(rle_requests *r)
{
    if (r->fd < 0) return;
    close(r->fd);
    unlink(r->path);
    r->fd = -1;
}

rle_status rle_group_ask_kill(const char *requests, const char *name, const char *reason)
{
    char line[256];
    int n = snprintf(line, sizeof line, "kill %s %s\n", name, reason);
    if (rle_simulated()) {
        line[n > 0 && n < (int)sizeof line ? n - 1 : 0] = 0;
        rle_world_simulated->ask(requests, line);
        return RLE_OK;
    }
    int fd = open(requests, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    ssize_t written = fd >= 0 && n < (int)sizeof line ? write(fd, line, (size_t)n) : -1;
    int why = errno;
    if (fd >= 0) close(fd);
    if (written == n) return RLE_OK;
    return rle_fail(RLE_UNAVAILABLE, "cannot ask the launcher at %s: %s", requests,
                    fd >= 0 && n >= (int)sizeof line ? "too long" : strerror(why));
}
