/* host.c - the program's functions under the names that the engine's files use. The
 * plug-in resolves nothing in the program: these go through the table it was given. */
#include <stdarg.h>
#include <stdio.h>

#include "base/mem.h"
#include "device/cuda/cuda_internal.h"

const rle_plugin_host *rle_host;

rle_status rle_failv(rle_status code, const char *fmt, va_list args)
{
    char text[2048];
    vsnprintf(text, sizeof text, fmt, args);
    rle_host->set_message(code, text);
    return code;
}

rle_status rle_fail(rle_status code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    rle_failv(code, fmt, args);
    va_end(args);
    return code;
}

const char *rle_message(void)
{
    return rle_host->message();
}

void *rle_malloc(size_t size)
{
    return rle_host->alloc(size);
}

void rle_free(void *p)
{
    rle_host->release(p);
}

rle_status rle_oom(size_t size, const char *what)
{
    return rle_fail(RLE_RESOURCE_EXHAUSTED, "out of memory: wanted %zu bytes for \"%s\"",
                    size, what);
}
