/* plugin.c - finding and opening device plug-ins, and the program's side of their table.
 *
 * A plug-in stays open for the life of the process: its devices do. */
#include "device/plugin.h"

#include <dlfcn.h>
#include <elf.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "device/device_internal.h"

/* Where plug-ins lie, from the folder of the object that holds this code: the program in
 * <build> or <prefix>/bin, or the Lua module in <build>/lib/rlengine or
 * <prefix>/lib/lua/5.1/rlengine, or a test in <build>/tests. */
static const char *const places[] = {
    "", "/lib/rlengine", "/../lib/rlengine", "/../../lib/rlengine", "/../../../rlengine",
};

typedef struct opened {
    const rle_plugin *plugin; /* NULL: not there */
    bool tried;
    rle_status status;
    char *reason;
} opened;

static opened plugins[RLE_DEVICE_EMU + 1];

static void set_message(rle_status code, const char *message)
{
    rle_fail(code, "%s", message);
}

static void warn(const char *message)
{
    rle_log(RLE_LOG_WARN, "%s", message);
}

static const rle_plugin_host host = {
    .warn = warn,
    .set_message = set_message,
    .message = rle_message,
    .alloc = rle_malloc,
    .release = rle_free,
    .fault = rle_device_fault_hits,
    .take = rle_device_take_workspace,
    .give = rle_device_give_workspace,
    .count = rle_device_count_workspace,
    .make_room = rle_device_make_room,
    .fatal = rle_device_fatal,
};

/* The folder of the running code in `out`; false when it cannot be told. */
static bool own_folder(char *out, size_t size)
{
    Dl_info info;
    char path[PATH_MAX];
    if (!dladdr((void *)(uintptr_t)own_folder, &info) || !info.dli_fname ||
        !realpath(info.dli_fname, path)) {
        /* A program found through PATH may be known by its bare name. */
        ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
        if (n <= 0) return false;
        path[n] = 0;
    }
    char *slash = strrchr(path, '/');
    if (!slash) return false;
    *slash = 0;
    return snprintf(out, size, "%s", path) < (int)size;
}

static bool try_place(char *path, size_t size, const char *folder, const char *below,
                      const char *file)
{
    return snprintf(path, size, "%s%s/%s", folder, below, file) < (int)size &&
           access(path, R_OK) == 0;
}

/* Path of the plug-in; false: not found. RLENGINE_PLUGINS names another folder. */
static bool find(const char *file, char *path, size_t size)
{
    const char *given = getenv("RLENGINE_PLUGINS");
    if (given && *given) return try_place(path, size, given, "", file);
    char folder[PATH_MAX];
    if (own_folder(folder, sizeof folder))
        for (size_t i = 0; i < sizeof places / sizeof *places; i++)
            if (try_place(path, size, folder, places[i], file)) return true;
    return try_place(path, size, RLE_PLUGIN_DIR, "", file);
}

/* Whether the file has all that its program headers promise. What is cut off, by a copy
 * that was stopped or a full disk, dlopen would map and then fall over (SIGBUS). Other
 * damage it sees by itself. */
static bool is_whole(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) return false;
    ElfW(Ehdr) e;
    ElfW(Phdr) h;
    bool whole = fread(&e, sizeof e, 1, f) == 1 &&
                 memcmp(e.e_ident, ELFMAG, SELFMAG) == 0 && e.e_phentsize == sizeof h &&
                 fseek(f, 0, SEEK_END) == 0;
    long size = whole ? ftell(f) : -1;
    for (int i = 0; whole && i < e.e_phnum; i++)
        whole = size >= 0 &&
                fseek(f, (long)(e.e_phoff + (size_t)i * sizeof h), SEEK_SET) == 0 &&
                fread(&h, sizeof h, 1, f) == 1 && h.p_offset <= (size_t)size &&
                h.p_filesz <= (size_t)size - h.p_offset;
    fclose(f);
    return whole;
}

/* Not found: where RLENGINE_PLUGINS says, or because it was not built. */
static rle_status not_found(bool cuda, const char *file)
{
    const char *given = getenv("RLENGINE_PLUGINS");
    if (given && *given)
        return rle_fail(
            RLE_UNAVAILABLE,
            "there is no %s in %s, the folder that RLENGINE_PLUGINS names: unset it or "
            "name the one with the plug-ins",
            file, given);
    return rle_fail(
        RLE_UNAVAILABLE, "%s",
        cuda ? "built without CUDA: install the CUDA Toolkit (nvcc) and build again"
             : "built without the emulated device: install a C++ compiler (Debian: "
               "g++) and build again");
}

static rle_status load(rle_device_type type, const rle_plugin **out)
{
    bool cuda = type == RLE_DEVICE_CUDA;
    const char *file = cuda ? "rlengine_cuda.so" : "rlengine_emu.so";
    char path[PATH_MAX];
    if (!find(file, path, sizeof path)) return not_found(cuda, file);
    if (!is_whole(path))
        return rle_fail(
            RLE_UNAVAILABLE,
            "%s is no plug-in or only a part of one: build and install it again", path);
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object)
        return rle_fail(RLE_UNAVAILABLE, "%s: build and install the plug-in again",
                        dlerror());
    rle_plugin_entry_fn *entry;
    *(void **)&entry = dlsym(object, RLE_PLUGIN_ENTRY);
    const rle_plugin *p = entry ? entry(RLE_PLUGIN_ABI, &host) : NULL;
    if (!p || p->abi != RLE_PLUGIN_ABI || p->size != sizeof *p) {
        dlclose(object);
        return rle_fail(RLE_UNAVAILABLE,
                        "%s is of another build of rlengine: build and install "
                        "both again",
                        path);
    }
    const char *settings = getenv("RLENGINE_EMU");
    if (p->control && settings && *settings) {
        rle_status status = p->control(settings);
        if (status != RLE_OK) return rle_fail(status, "RLENGINE_EMU: %s", rle_message());
    }
    *out = p;
    return RLE_OK;
}

rle_status rle_plugin_get(rle_device_type type, const rle_plugin **out)
{
    opened *o = &plugins[type];
    if (!o->tried) {
        o->tried = true;
        o->status = load(type, &o->plugin);
        if (o->status != RLE_OK) o->reason = rle_strdup(rle_message());
    }
    if (o->status != RLE_OK)
        return rle_fail(o->status, "%s",
                        o->reason ? o->reason : "the plug-in did not load");
    *out = o->plugin;
    return RLE_OK;
}
