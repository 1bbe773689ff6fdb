/* available.c - how much memory the machine can still give.
 *
 * Linux promises more than there is and ends the process that believes it. What is large
 * is therefore compared first with what the kernel calls available, and with what the
 * control group of a container leaves. */
#include "base/mem.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The number that follows `key` (NULL: that begins it) in a small file; UINT64_MAX when
 * there is none ("max"). */
static uint64_t number_in(const char *path, const char *key)
{
    char text[2048];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return UINT64_MAX;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return UINT64_MAX;
    text[n] = 0;
    const char *at = key ? strstr(text, key) : text;
    if (!at) return UINT64_MAX;
    at += key ? strlen(key) : 0;
    at += strspn(at, " \t");
    return *at >= '0' && *at <= '9' ? strtoull(at, NULL, 10) : UINT64_MAX;
}

static uint64_t left_of(const char *limit_path, const char *usage_path)
{
    uint64_t limit = number_in(limit_path, NULL), used = number_in(usage_path, NULL);
    if (limit == UINT64_MAX || used == UINT64_MAX) return UINT64_MAX;
    return limit > used ? limit - used : 0;
}

size_t rle_mem_available(void)
{
    uint64_t kib = number_in("/proc/meminfo", "MemAvailable:");
    uint64_t least = kib > UINT64_MAX / 1024 ? UINT64_MAX : kib * 1024;
    uint64_t group =
        left_of("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current");
    if (group < least) least = group;
    group = left_of("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                    "/sys/fs/cgroup/memory/memory.usage_in_bytes");
    if (group < least) least = group;
    return least > SIZE_MAX ? SIZE_MAX : (size_t)least;
}

rle_status rle_mem_check(size_t count, size_t size, const char *what)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) bytes = SIZE_MAX;
    if (bytes < RLE_MEM_LARGE) return RLE_OK;
    size_t available = rle_mem_available();
    if (bytes <= available) return RLE_OK;
    return rle_fail(RLE_RESOURCE_EXHAUSTED,
                    "out of memory: %s: %zu of %zu bytes are %.1f GiB together, %.1f GiB "
                    "are available",
                    what, count, size, (double)bytes / 0x1p30,
                    (double)available / 0x1p30);
}
