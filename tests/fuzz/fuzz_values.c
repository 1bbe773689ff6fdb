/* fuzz_values.c - bytes as values of a message. What can be read is written again, and
 * what was written is the same when it is read and written once more.
 *
 * The first byte: how many tensors the message declares; bit 7: the body of an error. The
 * second and third: how many of the bytes are values; behind them lie the tensors. */
#include "../c/rpc_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void copy_value(rle_decoder *d, rle_encoder *e, bool key, bool *good);

static volatile uint8_t all_bytes; /* so that reading them is not left out */

static void copy_table(rle_decoder *d, rle_encoder *e, uint32_t list, uint32_t pairs,
                       bool *good)
{
    *good = rle_encode_table(e, list, pairs) == RLE_OK;
    for (uint32_t i = 0; i < list && *good; i++) copy_value(d, e, false, good);
    for (uint32_t i = 0; i < pairs && *good; i++) {
        copy_value(d, e, true, good);
        if (*good) copy_value(d, e, false, good);
    }
    if (!*good) return;
    rle_decode_leave(d);
    rle_encode_leave(e);
}

static void copy_tensor(const rle_wire_tensor *t, rle_encoder *e, bool *good)
{
    rle_array a = {.dtype = t->dtype, .ndim = t->ndim, .data = (void *)t->data};
    memcpy(a.shape, t->shape, sizeof t->shape);
    uint8_t sum = 0;
    must(t->at % RLE_TENSOR_ALIGN == 0);
    rle_array_set_contiguous(&a);
    must((size_t)rle_array_numel(&a) * rle_dtype_size(a.dtype) == t->size);
    for (size_t i = 0; i < t->size; i++) sum ^= ((const uint8_t *)t->data)[i];
    all_bytes ^= sum;
    *good = rle_encode_tensor(e, &a, NULL) == RLE_OK;
}

static void copy_value(rle_decoder *d, rle_encoder *e, bool key, bool *good)
{
    rle_value v;
    *good = (key ? rle_decode_key(d, &v) : rle_decode(d, &v)) == RLE_OK;
    if (!*good) return;
    switch (v.kind) {
    case RLE_VALUE_NIL:
        rle_encode_nil(e);
        break;
    case RLE_VALUE_BOOL:
        rle_encode_bool(e, v.u.boolean);
        break;
    case RLE_VALUE_NUMBER:
        rle_encode_f64(e, v.u.number);
        break;
    case RLE_VALUE_INTEGER:
        rle_encode_integer(e, v.u.integer);
        break;
    case RLE_VALUE_I64:
        rle_encode_i64(e, v.u.integer);
        break;
    case RLE_VALUE_U64:
        rle_encode_u64(e, v.u.u64);
        break;
    case RLE_VALUE_STRING:
        *good = rle_encode_string(e, v.u.string.data, v.u.string.len) == RLE_OK;
        break;
    case RLE_VALUE_TABLE:
        copy_table(d, e, v.u.table.list, v.u.table.pairs, good);
        break;
    case RLE_VALUE_TENSOR:
        copy_tensor(&v.u.tensor, e, good);
        break;
    case RLE_VALUE_REF:
        rle_encode_ref(e, &v.u.ref);
        break;
    case RLE_VALUE_ERROR:
        *good = rle_encode_error_mark(e) == RLE_OK && rle_decode(d, &v) == RLE_OK &&
                v.kind == RLE_VALUE_TABLE;
        if (*good) copy_table(d, e, v.u.table.list, v.u.table.pairs, good);
        break;
    }
}

/* Read all of it and write it again; false when it cannot be read. */
static bool copy(const uint8_t *body, size_t size, size_t values, int tensors,
                 rle_encoder *e)
{
    rle_decoder d;
    uint16_t count;
    bool good = true;
    rle_decoder_init(&d, body, size, values, tensors);
    if (rle_decode_result_head(&d, &count) != RLE_OK) return false;
    rle_encoder_reset(e);
    rle_encode_result_head(e, count);
    for (; count && good; count--) copy_value(&d, e, false, &good);
    return good && rle_decode_end(&d) == RLE_OK && rle_encoder_status(e) == RLE_OK;
}

static uint8_t *flat(const rle_encoder *e, size_t *size)
{
    struct iovec parts[RLE_ENCODER_PARTS];
    int n = rle_encoder_parts(e, parts);
    size_t at = 0;
    *size = rle_encoder_body_size(e);
    uint8_t *body = malloc(*size + 1);
    for (int i = 0; i < n; i++) {
        if (parts[i].iov_len) memcpy(body + at, parts[i].iov_base, parts[i].iov_len);
        at += parts[i].iov_len;
    }
    must(at == *size);
    return body;
}

static void check_values(const uint8_t *body, size_t size, size_t values, int tensors)
{
    rle_encoder e, again;
    rle_encoder_init(&e);
    rle_encoder_init(&again);
    if (copy(body, size, values, tensors, &e)) {
        size_t first_size, second_size, first_values = rle_encoder_values_size(&e);
        must(first_values <=
             values); /* what we write is never longer than what was read */
        uint8_t *first = flat(&e, &first_size);
        must(copy(first, first_size, first_values, e.tensors, &again));
        uint8_t *second = flat(&again, &second_size);
        must(first_size == second_size && memcmp(first, second, first_size) == 0);
        free(first);
        free(second);
    }
    rle_encoder_fini(&e);
    rle_encoder_fini(&again);
}

static void check_error(const uint8_t *body, size_t size)
{
    rle_msg m = {.data = body, .size = size, .values = (uint32_t)size};
    rle_wire_error e, again;
    if (rle_error_decode(&m, &e) != RLE_OK) return;
    rle_writer w;
    rle_writer_init(&w);
    rle_error_encode(&w, &e);
    m = (rle_msg){.data = w.data, .size = w.len, .values = (uint32_t)w.len};
    must(rle_error_decode(&m, &again) == RLE_OK);
    must(again.code == e.code && again.outcome == e.outcome && again.hops <= e.hops);
    must(again.message.n <= e.message.n);
    rle_writer_fini(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3) return 0;
    size_t n = size - 3, values = (data[1] | (size_t)data[2] << 8);
    if (values > n) values = n;
    uint8_t *body = malloc(n + 1);
    memcpy(body, data + 3, n);
    size_t blocks = rle_mem_blocks();
    if (data[0] & 128) {
        check_error(body, n);
    } else {
        rle_decoder d;
        rle_call_head head;
        check_values(body, n, values, data[0]);
        rle_decoder_init(&d, body, n, values, data[0]);
        if (rle_decode_call_head(&d, &head) == RLE_OK)
            must(head.method_len <= RLE_NAME_MAX);
    }
    must(rle_mem_blocks() == blocks);
    free(body);
    return 0;
}
