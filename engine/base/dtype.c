/* dtype.c - names of element types and shapes. */
#include "base/dtype.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const dtype_names[RLE_DTYPE_COUNT] = {"f32", "f64",  "i32", "i64",
                                                         "u8",  "bool", "f16", "bf16"};

const char *rle_dtype_name(rle_dtype t)
{
    return (unsigned)t < RLE_DTYPE_COUNT ? dtype_names[t] : "?";
}

rle_status rle_dtype_parse(const char *name, rle_dtype *out)
{
    for (int i = 0; i < RLE_F16; i++) {
        if (strcmp(name, dtype_names[i]) == 0) {
            *out = (rle_dtype)i;
            return RLE_OK;
        }
    }
    return rle_fail(RLE_INVALID_ARGUMENT,
                    "unknown dtype \"%.32s\"; there are f32, f64, i32, i64, u8 and bool",
                    name);
}

char *rle_array_describe(const rle_array *a, char *out, size_t size)
{
    int used = snprintf(out, size, "%s[", rle_dtype_name(a->dtype));
    for (int i = 0; i < a->ndim && (size_t)used < size; i++)
        used += snprintf(out + used, size - (size_t)used, "%s%" PRId64, i ? "," : "",
                         a->shape[i]);
    if ((size_t)used < size) snprintf(out + used, size - (size_t)used, "]");
    return out;
}
