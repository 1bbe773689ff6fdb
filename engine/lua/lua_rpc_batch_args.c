/* lua_rpc_batch_args.c - are the arguments of a call what a batched function takes? */
#include <stdio.h>

#include "lua/lua_rpc_batch.h"

static const char *plural(size_t n)
{
    return n == 1 ? "" : "s";
}

static void note_unfit(void *self, const rle_value *v)
{
    if (v->kind == RLE_VALUE_TENSOR || v->kind == RLE_VALUE_REF)
        *(rle_value_kind *)self = v->kind;
}

static rle_status skip_any(const rle_batch_input *input, rle_decoder *d, rle_slice *out)
{
    rle_value_kind unfit = RLE_VALUE_NIL;
    out->p = (const char *)d->r.p;
    RLE_TRY(rle_decode_skip(d, note_unfit, &unfit));
    out->n = (size_t)((const char *)d->r.p - out->p);
    if (unfit == RLE_VALUE_NIL) return RLE_OK;
    return rle_fail(
        RLE_INVALID_ARGUMENT,
        unfit == RLE_VALUE_TENSOR
            ? "%s has a tensor in it; a batched function stacks tensors that its "
              "input declares, as \"%s f32[4]\""
            : "%s has a reference in it, which a batched function does not take; "
              "give it to another one first",
        input->name, input->name);
}

static rle_status unfit(const rle_lua_batch *b, const rle_batch_input *input,
                        const rle_peer *caller, const char *got)
{
    return rle_fail(RLE_INVALID_ARGUMENT, "%s of \"%s\" is %s, %s wants %s", input->name,
                    rle_peer_name(caller), got, b->who, input->wants);
}

rle_status rle_batch_count_rows(const rle_lua_batch *b, const rle_batch_input *input,
                                const rle_peer *caller, const rle_value *v, size_t *rows,
                                bool *single)
{
    static const char *const kinds[] = {
        "nil",         "a boolean",        "a number",
        "a number",    "a 64-bit integer", "a 64-bit integer",
        "a string",    "a table",          "a tensor",
        "a reference", "an error"};
    const rle_array *row = &input->row;
    bool plain = v->kind == RLE_VALUE_NUMBER || v->kind == RLE_VALUE_INTEGER ||
                 v->kind == RLE_VALUE_BOOL;
    if (plain && row->ndim == 0) {
        *rows = 1;
        *single = true;
        return RLE_OK;
    }
    if (v->kind != RLE_VALUE_TENSOR) return unfit(b, input, caller, kinds[v->kind]);
    const rle_wire_tensor *t = &v->u.tensor;
    int more = t->ndim - row->ndim;
    if (t->dtype == row->dtype && (more == 0 || more == 1) &&
        memcmp(t->shape + more, row->shape, (size_t)row->ndim * sizeof row->shape[0]) ==
            0 &&
        (more == 0 || t->shape[0] > 0)) {
        *rows = more ? (size_t)t->shape[0] : 1;
        *single = !more;
        return RLE_OK;
    }
    rle_array got = {.dtype = t->dtype, .ndim = t->ndim};
    char text[128];
    memcpy(got.shape, t->shape, sizeof got.shape);
    return unfit(b, input, caller, rle_array_describe(&got, text, sizeof text));
}

/* A number that its column cannot hold is refused, not rounded. */
static rle_status check_numbers(const rle_lua_batch *b, const rle_peer *caller,
                                const rle_batch_arguments *a)
{
    for (int i = 0; i < b->inputs; i++) {
        const rle_batch_input *input = &b->input[i];
        const rle_value *v = &a->value[i];
        if (input->any || v->kind == RLE_VALUE_TENSOR ||
            rle_dtype_is_float(input->row.dtype))
            continue;
        double low = 0, high = 1;
        if (input->row.dtype == RLE_I32) low = -0x1p31, high = 0x1p31 - 1;
        if (input->row.dtype == RLE_I64) low = -0x1p63, high = 0x1p63;
        if (input->row.dtype == RLE_U8) high = 255;
        double x = v->kind == RLE_VALUE_INTEGER ? (double)v->u.integer
                   : v->kind == RLE_VALUE_BOOL  ? (double)v->u.boolean
                                                : 0.5;
        char text[48];
        snprintf(text, sizeof text, "%.17g",
                 v->kind == RLE_VALUE_NUMBER ? v->u.number : x);
        if (v->kind == RLE_VALUE_NUMBER || x < low || x > high)
            return unfit(b, input, caller, text);
    }
    return RLE_OK;
}

rle_status rle_batch_read(const rle_lua_batch *b, const rle_incoming_info *info,
                          rle_decoder *d, rle_batch_arguments *a)
{
    const rle_batch_input *first = NULL;
    if (info->head.args != b->inputs)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "\"%s\" takes %d argument%s, \"%s\" gave %d", b->method,
                        b->inputs, plural((size_t)b->inputs), rle_peer_name(info->caller),
                        info->head.args);
    a->rows = 1;
    a->single = true;
    for (int i = 0; i < b->inputs; i++) {
        const rle_batch_input *input = &b->input[i];
        if (input->any) {
            RLE_TRY(skip_any(input, d, &a->any[i]));
            continue;
        }
        size_t rows;
        bool single;
        RLE_TRY(rle_decode(d, &a->value[i]));
        RLE_TRY(
            rle_batch_count_rows(b, input, info->caller, &a->value[i], &rows, &single));
        if (first && rows != a->rows)
            return rle_fail(RLE_INVALID_ARGUMENT,
                            "%s of \"%s\" has %zu row%s, its %s %zu", input->name,
                            rle_peer_name(info->caller), rows, plural(rows), first->name,
                            a->rows);
        if (!first) first = input;
        a->rows = rows;
        a->single = a->single && single;
    }
    RLE_TRY(check_numbers(b, info->caller, a));
    return rle_decode_end(d);
}

void rle_batch_store_number(const rle_value *v, rle_dtype dtype, void *to)
{
    double x = v->kind == RLE_VALUE_NUMBER    ? v->u.number
               : v->kind == RLE_VALUE_INTEGER ? (double)v->u.integer
                                              : v->u.boolean;
    switch (dtype) {
    case RLE_F32: {
        float f = (float)x;
        memcpy(to, &f, sizeof f);
        break;
    }
    case RLE_F64:
        memcpy(to, &x, sizeof x);
        break;
    case RLE_I32: {
        int32_t i = x >= -0x1p31 && x < 0x1p31 ? (int32_t)x : 0;
        memcpy(to, &i, sizeof i);
        break;
    }
    case RLE_I64: {
        int64_t i = x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : 0;
        if (v->kind == RLE_VALUE_INTEGER) i = v->u.integer;
        memcpy(to, &i, sizeof i);
        break;
    }
    case RLE_U8:
        *(uint8_t *)to = x >= 0 && x < 256 ? (uint8_t)x : 0;
        break;
    default:
        *(uint8_t *)to = x != 0;
        break;
    }
}
