/* device.c - the devices of this process: opened by name, closed with the process. */
#include "device/device_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/cpu/cpu.h"

static void *cpu_raw_alloc(rle_device *dev, size_t size)
{
    (void)dev;
    void *p = NULL;
    return posix_memalign(&p, 64, size) == 0 ? p : NULL;
}

static void cpu_raw_free(rle_device *dev, void *p, size_t size)
{
    (void)dev;
    (void)size;
    free(p);
}

static rle_status cpu_copy(rle_device *dev, void *dst, const void *src, size_t size)
{
    (void)dev;
    if (size) memcpy(dst, src, size);
    return RLE_OK;
}

static rle_device cpu = {
    .type = RLE_DEVICE_CPU,
    .name = "cpu",
    .raw_alloc = cpu_raw_alloc,
    .raw_free = cpu_raw_free,
    .copy_in = cpu_copy,
    .copy_out = cpu_copy,
};

/* Opened devices, in the order they were opened. The cpu is always there. */
static rle_device *devices[16];
static int device_count;

static rle_status limit_from_environment(rle_device *dev)
{
    const char *text = getenv("RLENGINE_DEVICE_LIMIT");
    if (!text || !*text) return RLE_OK;
    size_t bytes;
    rle_status status = rle_bytes_parse(text, &bytes);
    if (status != RLE_OK)
        return rle_fail(status, "RLENGINE_DEVICE_LIMIT: %s", rle_message());
    rle_device_set_limit(dev, bytes);
    return RLE_OK;
}

static rle_status open_cpu(void)
{
    if (device_count) return RLE_OK;
    RLE_TRY(rle_allocator_new(&cpu.allocator));
    cpu.ops = rle_cpu_ops();
    rle_status status = limit_from_environment(&cpu);
    if (status != RLE_OK) {
        rle_allocator_free(&cpu);
        return status;
    }
    devices[device_count++] = &cpu;
    return RLE_OK;
}

rle_device *rle_device_cpu(void)
{
    return open_cpu() == RLE_OK ? &cpu : NULL;
}

rle_status rle_device_get(const char *name, int rank, rle_device **out)
{
    (void)rank; /* picks among several devices of one type; the cpu is one */
    RLE_TRY(open_cpu());
    if (strcmp(name, "cpu") == 0 || strcmp(name, "auto") == 0) {
        *out = &cpu;
        return RLE_OK;
    }
    if (strncmp(name, "cuda", 4) == 0 || strcmp(name, "emu") == 0)
        return rle_fail(
            RLE_UNAVAILABLE,
            "no device \"%.32s\": this build computes on the CPU only; use \"cpu\" "
            "or \"auto\"",
            name);
    return rle_fail(
        RLE_INVALID_ARGUMENT,
        "unknown device \"%.32s\"; there are \"cpu\", \"cuda\", \"cuda:<n>\", "
        "\"emu\" and \"auto\"",
        name);
}

int rle_device_count(void)
{
    return device_count;
}

rle_device *rle_device_at(int i)
{
    return i >= 0 && i < device_count ? devices[i] : NULL;
}

size_t rle_device_live_bytes(void)
{
    size_t sum = 0;
    for (int i = 0; i < device_count; i++) {
        rle_memory_stats stats;
        rle_device_memory(devices[i], &stats);
        sum += stats.allocated;
    }
    return sum;
}
