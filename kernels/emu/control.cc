/* control.cc - settings as text, and the failures that tests order. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>

#include "emu_control.h"
#include "emu_internal.h"

namespace emu
{

Settings settings;

static char wrong[256]; /* what rle_emu_control gives back */
static FILE *trace_file;

uint64_t random_number()
{
    uint64_t &s = settings.random;
    s ^= s << 13;
    s ^= s >> 7;
    s ^= s << 17;
    return s;
}

void trace(const char *call)
{
    if (!trace_file) return;
    fprintf(trace_file, "%s\n", call);
    fflush(trace_file);
}

/* ---- ordered failures ---- */

static struct {
    const char *name;   /* of the setting, behind "fail_" */
    cudaError_t usual;  /* when no code is given */
    unsigned long left; /* calls until it fails; 0: it does not */
    cudaError_t code;
} failures[FAIL_KINDS] = {
    {"never", cudaSuccess, 0, cudaSuccess},
    {"count", cudaErrorNoDevice, 0, cudaSuccess},
    {"device", cudaErrorInvalidDevice, 0, cudaSuccess},
    {"malloc", cudaErrorMemoryAllocation, 0, cudaSuccess},
    {"free", cudaErrorInvalidValue, 0, cudaSuccess},
    {"host", cudaErrorMemoryAllocation, 0, cudaSuccess},
    {"info", cudaErrorUnknown, 0, cudaSuccess},
    {"copy", cudaErrorInvalidValue, 0, cudaSuccess},
    {"launch", cudaErrorLaunchOutOfResources, 0, cudaSuccess},
    {"stream", cudaErrorMemoryAllocation, 0, cudaSuccess},
    {"event", cudaErrorMemoryAllocation, 0, cudaSuccess},
    {"wait", cudaErrorUnknown, 0, cudaSuccess},
    {"cublas", static_cast<cudaError_t>(13), 0, cudaSuccess}, /* a cublasStatus_t */
};

cudaError_t ordered_failure(Failing kind)
{
    auto &f = failures[kind];
    if (!f.left || --f.left) return cudaSuccess;
    return f.code;
}

/* ---- settings ---- */

static bool complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
static bool complain(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(wrong, sizeof wrong, format, args);
    va_end(args);
    return false;
}

static bool read_number(const char *name, const char *text, unsigned long least,
                        unsigned long most, unsigned long *out)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || n < least || n > most)
        return complain("%s=%.40s: a number from %lu to %lu is wanted", name, text, least,
                        most);
    *out = n;
    return true;
}

static bool read_size(const char *name, const char *text, size_t *out)
{
    char *end;
    double n = strtod(text, &end);
    double unit = strcmp(end, "KiB") == 0   ? 0x1p10
                  : strcmp(end, "MiB") == 0 ? 0x1p20
                  : strcmp(end, "GiB") == 0 ? 0x1p30
                  : *end                    ? 0
                                            : 1;
    double bytes = n * unit;
    if (end == text || !unit || !(bytes >= 0 && bytes <= 0x1p36))
        return complain("%s=%.40s: a size up to 64GiB is wanted, as 64MiB", name, text);
    *out = static_cast<size_t>(bytes);
    return true;
}

/* One of a few words; their number. */
static bool read_word(const char *name, const char *text, const char *const *words,
                      int *out)
{
    std::string all;
    for (int i = 0; words[i]; i++) {
        if (strcmp(text, words[i]) == 0) {
            *out = i;
            return true;
        }
        all += (i ? ", " : "") + std::string(words[i]);
    }
    return complain("%s=%.40s: one of %s is wanted", name, text, all.c_str());
}

static bool read_failure(const char *name, const char *kind, const char *text)
{
    for (auto &f : failures) {
        if (strcmp(f.name, kind) != 0 || !f.usual) continue;
        std::string number(text, strcspn(text, ":"));
        unsigned long left, code = f.usual;
        if (!read_number(name, number.c_str(), 0, 1000000000, &left)) return false;
        if (text[number.size()] &&
            !read_number(name, text + number.size() + 1, 1, 999, &code))
            return false;
        f.left = left;
        f.code = static_cast<cudaError_t>(code);
        return true;
    }
    std::string all;
    for (auto &f : failures)
        if (f.usual) all += std::string(all.empty() ? "" : ", ") + "fail_" + f.name;
    return complain("unknown setting \"%.40s\"; failures are %s", name, all.c_str());
}

static bool open_trace(const char *path)
{
    if (trace_file) fclose(trace_file);
    trace_file = *path ? fopen(path, "w") : nullptr;
    return trace_file || !*path || complain("trace=%.100s: %m", path);
}

static bool any_open()
{
    for (const Device &d : devices)
        if (d.open) return true;
    return false;
}

static bool set(Settings *s, const std::string &word)
{
    static const char *const orders[] = {"forward", "reverse", "random", nullptr};
    static const char *const streams[] = {"eager", "lazy", nullptr};
    static const char *const guards[] = {"off", "on", nullptr};
    size_t equals = word.find('=');
    std::string name = word.substr(0, equals);
    const char *n = name.c_str();
    const char *value = equals == std::string::npos ? "" : word.c_str() + equals + 1;
    unsigned long number;
    int choice;
    if (name == "devices") {
        if (!read_number(n, value, 1, MOST_DEVICES, &number)) return false;
        if (any_open() && static_cast<int>(number) != s->devices)
            return complain("devices=%s: must be set before a device is used", value);
        s->devices = static_cast<int>(number);
    } else if (name == "memory") {
        return read_size(n, value, &s->memory);
    } else if (name == "context") {
        return read_size(n, value, &s->context);
    } else if (name == "order") {
        if (!read_word(n, value, orders, &choice)) return false;
        s->order = static_cast<Order>(choice);
    } else if (name == "seed") {
        if (!read_number(n, value, 1, ~0ul, &number)) return false;
        s->random = number;
    } else if (name == "streams") {
        if (!read_word(n, value, streams, &choice)) return false;
        s->lazy = choice == 1;
    } else if (name == "guard") {
        if (!read_word(n, value, guards, &choice)) return false;
        s->guard = choice == 1;
    } else if (name == "cublas") {
        if (!read_word(n, value, guards, &choice)) return false;
        s->cublas = choice == 1;
    } else if (name == "trace") {
        return open_trace(value);
    } else if (name == "reset") {
        forget_errors();
    } else if (name.compare(0, 5, "fail_") == 0) {
        return read_failure(n, n + 5, value);
    } else {
        return complain("unknown setting \"%.40s\"; there are devices, memory, context, "
                        "order, seed, streams, guard, cublas, trace, reset and fail_...",
                        n);
    }
    return true;
}

} // namespace emu

using namespace emu;

extern "C" const char *rle_emu_control(const char *text)
{
    Settings next = settings;
    for (const char *p = text + strspn(text, " "); *p; p += strspn(p, " ")) {
        size_t length = strcspn(p, " ");
        if (!set(&next, std::string(p, length))) return wrong;
        p += length;
    }
    if (!any_open() && next.memory <= next.context) {
        complain("memory=%zu: a device in use takes %zu for itself (context), and more "
                 "is wanted",
                 next.memory, next.context);
        return wrong;
    }
    /* What was given to lazy streams runs before they change. */
    if (next.lazy != settings.lazy || next.order != settings.order)
        for (Device &d : devices)
            if (d.open) finish(&d);
    settings = next;
    return nullptr;
}
