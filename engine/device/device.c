/* device.c - the devices of this process: opened by name, closed with the process. */
#include "device/device_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/world.h"
#include "device/cpu/cpu.h"
#include "device/plugin.h"

static void *cpu_raw_alloc(rle_device *dev, size_t size)
{
    (void)dev;
    void *p = NULL;
    if (rle_mem_check(1, size, "a tensor") != RLE_OK) return NULL;
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
enum { DEVICES_MAX = 32 };
static rle_device *devices[DEVICES_MAX];
static int device_count;

static rle_status limit_from_environment(rle_device *dev)
{
    const char *text = getenv("RLENGINE_DEVICE_LIMIT");
    if (!text || !*text) return RLE_OK;
    size_t bytes;
    rle_status status = rle_bytes_parse(text, &bytes);
    if (status != RLE_OK)
        return rle_fail(status, "RLENGINE_DEVICE_LIMIT: %s", rle_message());
    if (!bytes)
        return rle_fail(
            RLE_INVALID_ARGUMENT,
            "RLENGINE_DEVICE_LIMIT: \"%.64s\" is less than a byte; leave it unset "
            "for no limit",
            text);
    rle_device_set_limit(dev, bytes);
    return RLE_OK;
}

static rle_status open_cpu(void)
{
    if (device_count) return RLE_OK;
    RLE_TRY(rle_allocator_new(false, &cpu.allocator));
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

/* ---- devices of plug-ins ---- */

rle_status rle_device_available(rle_device_type type, int *out)
{
    if (type == RLE_DEVICE_CPU) {
        *out = 1;
        return RLE_OK;
    }
    const rle_plugin *plugin;
    RLE_TRY(rle_plugin_get(type, &plugin));
    return plugin->count(out);
}

static rle_device *find_open(rle_device_type type, int index)
{
    for (int i = 0; i < device_count; i++)
        if (devices[i]->type == type && devices[i]->index == index) return devices[i];
    return NULL;
}

static rle_status open_plugin_device(rle_device_type type, int index, rle_device **out)
{
    const rle_plugin *plugin;
    RLE_TRY(rle_plugin_get(type, &plugin));
    if (device_count == DEVICES_MAX)
        return rle_fail(RLE_RESOURCE_EXHAUSTED, "at most %d devices can be open",
                        DEVICES_MAX);
    rle_device *dev = rle_calloc(1, sizeof *dev);
    if (!dev) return rle_oom(sizeof *dev, "a device");
    dev->type = type;
    dev->index = index;
    snprintf(dev->name, sizeof dev->name, "%s:%d", plugin->type, index);
    rle_status status = rle_allocator_new(true, &dev->allocator);
    if (status == RLE_OK) status = limit_from_environment(dev);
    if (status == RLE_OK) status = plugin->open(dev);
    if (status != RLE_OK) {
        if (dev->allocator) rle_allocator_free(dev);
        rle_free(dev);
        return status;
    }
    *out = devices[device_count++] = dev;
    return RLE_OK;
}

/* "cuda", "cuda:1" -> type and index, -1 where none is given. */
static rle_status parse_name(const char *name, rle_device_type *type, int *index)
{
    size_t length = strcspn(name, ":");
    const char *colon = name[length] ? name + length : NULL;
    *index = -1;
    if (length == 3 && strncmp(name, "cpu", 3) == 0)
        *type = RLE_DEVICE_CPU;
    else if (length == 4 && strncmp(name, "cuda", 4) == 0)
        *type = RLE_DEVICE_CUDA;
    else if (length == 3 && strncmp(name, "emu", 3) == 0)
        *type = RLE_DEVICE_EMU;
    else
        length = 0;
    if (length && !colon) return RLE_OK;
    if (length && colon[1] >= '0' && colon[1] <= '9' && strlen(colon + 1) <= 3 &&
        colon[1 + strspn(colon + 1, "0123456789")] == 0) {
        *index = atoi(colon + 1);
        return RLE_OK;
    }
    return rle_fail(
        RLE_INVALID_ARGUMENT,
        "unknown device \"%.32s\"; there are \"cpu\", \"cuda\", \"cuda:<n>\", "
        "\"emu\", \"emu:<n>\" and \"auto\"",
        name);
}

rle_status rle_device_get(const char *name, int rank, rle_device **out)
{
    RLE_TRY(open_cpu());
    rle_device_type type = RLE_DEVICE_CPU;
    int index = -1, count;
    if (strcmp(name, "auto") == 0) {
        rle_status status = rle_device_get("cuda", rank, out);
        return status == RLE_UNAVAILABLE ? rle_device_get("cpu", rank, out) : status;
    }
    RLE_TRY(parse_name(name, &type, &index));
    rle_status status = rle_device_available(type, &count);
    if (status != RLE_OK)
        return rle_fail(status, "no device \"%.32s\": %s", name, rle_message());
    if (index >= count)
        return rle_fail(RLE_UNAVAILABLE,
                        "no device \"%.32s\": there %s %d, from %.*s:0 on", name,
                        count == 1 ? "is" : "are", count, (int)strcspn(name, ":"), name);
    if (index < 0) index = rank % count;
    if (type == RLE_DEVICE_CPU)
        *out = &cpu;
    else if ((*out = find_open(type, index)) == NULL)
        RLE_TRY(open_plugin_device(type, index, out));
    return RLE_OK;
}

/* The model's name as Linux tells it; "CPU" where it does not. */
static void cpu_name(char *out, size_t size)
{
    char line[256];
    snprintf(out, size, "CPU");
    FILE *f = fopen("/proc/cpuinfo", "re");
    if (!f) return;
    while (fgets(line, sizeof line, f)) {
        char *value = strchr(line, ':');
        if (!value || strncmp(line, "model name", 10) != 0) continue;
        value += 1 + strspn(value + 1, " ");
        value[strcspn(value, "\n")] = 0;
        snprintf(out, size, "%s", value);
        break;
    }
    fclose(f);
}

rle_status rle_device_get_properties(rle_device *dev, rle_device_properties *out)
{
    return rle_device_describe(dev->type, dev->index, out);
}

rle_status rle_device_describe(rle_device_type type, int index,
                               rle_device_properties *out)
{
    const rle_plugin *plugin;
    if (type != RLE_DEVICE_CPU) {
        RLE_TRY(rle_plugin_get(type, &plugin));
        return plugin->properties(index, out);
    }
    memset(out, 0, sizeof *out);
    cpu_name(out->name, sizeof out->name);
    out->multiprocessors = (int)sysconf(_SC_NPROCESSORS_ONLN);
    out->memory = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    return RLE_OK;
}

rle_status rle_device_synchronize(rle_device *dev)
{
    return dev->synchronize ? dev->synchronize(dev) : RLE_OK;
}

/* That it could ever be had. */
static rle_status check_workspace(rle_device *dev, size_t bytes)
{
    rle_memory_stats s;
    rle_device_memory(dev, &s);
    rle_device_properties p;
    size_t room =
        rle_device_get_properties(dev, &p) == RLE_OK && p.memory ? p.memory : SIZE_MAX;
    bool limited = s.limit && s.limit < room;
    if (limited) room = s.limit;
    if (bytes <= room) return RLE_OK;
    char wanted[32], text[32];
    return rle_fail(
        RLE_INVALID_ARGUMENT,
        "%s: a workspace of %s for products of matrices is more than %s of %s", dev->name,
        rle_bytes_format((double)bytes, wanted, sizeof wanted),
        limited ? "the limit" : "the device's memory",
        rle_bytes_format((double)room, text, sizeof text));
}

rle_status rle_device_blas(rle_device *dev, const rle_blas_settings *set,
                           rle_blas_state *out)
{
    if (!dev->blas)
        return rle_fail(RLE_UNIMPLEMENTED,
                        "%s: products of matrices have no settings there", dev->name);
    rle_blas_state now;
    if (set && dev->blas(dev, NULL, &now) == RLE_OK &&
        set->workspace != now.settings.workspace)
        RLE_TRY(check_workspace(dev, set->workspace));
    return dev->blas(dev, set, out);
}

rle_status rle_device_emu_control(const char *settings)
{
    const rle_plugin *plugin;
    RLE_TRY(rle_plugin_get(RLE_DEVICE_EMU, &plugin));
    return plugin->control(settings);
}

/* ---- trouble ---- */

static RLE_PER_PROCESS void (*fatal_hook)(void *self, const char *message);
static RLE_PER_PROCESS void *fatal_self;

void rle_device_on_fatal(void (*fn)(void *self, const char *message), void *self)
{
    fatal_hook = fn;
    fatal_self = self;
}

void rle_device_fatal(const char *message)
{
    rle_log(RLE_LOG_ERROR, "FATAL: %s", message);
    static bool again; /* the hook may come back here: then it is over at once */
    if (!again && fatal_hook) {
        again = true;
        fatal_hook(fatal_self, message);
    }
    fflush(NULL); /* what the script has printed, and its log */
    _exit(70);    /* EX_SOFTWARE; no handlers, they may call the driver */
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
