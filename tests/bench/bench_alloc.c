/* bench_alloc.c - a block from the cache and back, on the CPU and in segments, beside the
 * system's malloc and free of the same sizes. Least of several rounds, in nanoseconds for
 * one block taken and given. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "device/device_internal.h"

enum { LIVE = 64, ROUNDS = 200, PASSES = 100 };

static void *host_alloc(rle_device *dev, size_t size)
{
    (void)dev;
    void *p = NULL;
    return posix_memalign(&p, 256, size) == 0 ? p : NULL;
}

static void host_free(rle_device *dev, void *p, size_t size)
{
    (void)dev, (void)size;
    free(p);
}

static rle_device host = {.type = RLE_DEVICE_EMU,
                          .name = "host",
                          .raw_alloc = host_alloc,
                          .raw_free = host_free};

static const size_t network[] = {16,     512, 1024, 2048, 8,   4,
                                 131072, 4,   1024, 32,   512, 4096};

static size_t size_at(int i, size_t given)
{
    return given ? given : network[i % (int)(sizeof network / sizeof *network)];
}

/* Nanoseconds a pair. size 0: those of a small network. */
static double device_pairs(rle_device *dev, size_t size)
{
    static rle_block block[LIVE];
    double best = 1e300;
    for (int round = 0; round < ROUNDS; round++) {
        int64_t start = rle_now();
        for (int pass = 0; pass < PASSES; pass++) {
            for (int i = 0; i < LIVE; i++)
                if (rle_device_alloc(dev, size_at(i, size), &block[i]) != RLE_OK) abort();
            for (int i = 0; i < LIVE; i++) rle_device_free(dev, &block[i]);
        }
        double ns = (double)(rle_now() - start) / (PASSES * LIVE);
        if (ns < best) best = ns;
    }
    return best;
}

static double system_pairs(size_t size)
{
    static void *volatile block[LIVE];
    double best = 1e300;
    for (int round = 0; round < ROUNDS; round++) {
        int64_t start = rle_now();
        for (int pass = 0; pass < PASSES; pass++) {
            for (int i = 0; i < LIVE; i++) block[i] = malloc(size_at(i, size));
            for (int i = 0; i < LIVE; i++) free(block[i]);
        }
        double ns = (double)(rle_now() - start) / (PASSES * LIVE);
        if (ns < best) best = ns;
    }
    return best;
}

int main(void)
{
    if (rle_allocator_new(true, &host.allocator) != RLE_OK) return 1;
    static const size_t sizes[] = {16, 2048, 262144, 4 << 20, 0};
    printf("nanoseconds for a block taken and given     cpu   segments   malloc/free   "
           "cpu:malloc\n");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        double c = device_pairs(rle_device_cpu(), sizes[i]);
        double s = device_pairs(&host, sizes[i]), m = system_pairs(sizes[i]);
        char name[32];
        if (sizes[i])
            snprintf(name, sizeof name, "%zu bytes", sizes[i]);
        else
            snprintf(name, sizeof name, "sizes of a small network");
        printf("  %-38s %6.1f     %6.1f        %6.1f       %6.2f\n", name, c, s, m,
               c / m);
    }
    rle_allocator_free(&host);
    return 0;
}
