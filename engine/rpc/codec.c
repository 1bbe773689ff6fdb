/* codec.c - items to bytes and back. */
#include "rpc/codec.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/mem.h"

enum {
    TAG_NIL = 0x00,
    TAG_FALSE = 0x01,
    TAG_TRUE = 0x02,
    TAG_F64 = 0x03,
    TAG_INTEGER = 0x04,
    TAG_I64 = 0x05,
    TAG_U64 = 0x06,
    TAG_STRING = 0x07,
    TAG_LIST = 0x08,
    TAG_TABLE = 0x09,
    TAG_TENSOR = 0x0a,
    TAG_REF = 0x0b,
    TAG_ERROR = 0x0c,
    TAG_SHORT_STRING = 0x40,
    SHORT_STRING_MAX = 31,
    TAG_SMALL = 0x80
};

enum { ENCODER_KEEP = 1 << 20 }; /* block an encoder keeps between messages */

bool rle_name_ok(const char *name, size_t len)
{
    if (len < 1 || len > RLE_NAME_MAX) return false;
    for (size_t i = 0; i < len; i++) {
        char c = name[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '_' || c == '.' || c == '-'))
            return false;
    }
    return true;
}

/* ---- writing ---- */

void rle_encoder_init(rle_encoder *e)
{
    rle_writer_init(&e->w);
    e->tensors = 0;
    e->lent = NULL;
    e->stays = false;
    rle_encoder_reset(e);
}

static void drop_tensors(rle_encoder *e)
{
    for (int i = 0; i < e->tensors; i++) rle_free(e->tensor[i].own);
    e->tensors = 0;
    e->tensor_bytes = 0;
}

void rle_encoder_fini(rle_encoder *e)
{
    drop_tensors(e);
    rle_writer_fini(&e->w);
}

void rle_encoder_reset(rle_encoder *e)
{
    drop_tensors(e);
    rle_writer_reset(&e->w, ENCODER_KEEP);
    rle_writer_room(&e->w, RLE_FRAME_HEADER);
    e->values = 0;
    e->refs = 0;
    e->depth = 0;
}

int rle_encoder_parts(const rle_encoder *e, struct iovec *out)
{
    static const uint8_t zeros[RLE_TENSOR_ALIGN];
    size_t at = rle_encoder_values_size(e);
    int n = 0;
    out[n++] = (struct iovec){e->w.data + RLE_FRAME_HEADER, at};
    for (int i = 0; i < e->tensors; i++) {
        size_t pad = rle_align64(at) - at;
        if (pad) out[n++] = (struct iovec){(void *)zeros, pad};
        if (e->tensor[i].size)
            out[n++] = (struct iovec){(void *)e->tensor[i].data, e->tensor[i].size};
        at += pad + e->tensor[i].size;
    }
    return n;
}

size_t rle_encoder_body_size(const rle_encoder *e)
{
    size_t values = rle_encoder_values_size(e);
    return e->tensors ? rle_align64(values) + e->tensor_bytes : values;
}

void rle_encode_nil(rle_encoder *e)
{
    e->values++;
    rle_write_u8(&e->w, TAG_NIL);
}

void rle_encode_bool(rle_encoder *e, bool v)
{
    e->values++;
    rle_write_u8(&e->w, v ? TAG_TRUE : TAG_FALSE);
}

void rle_encode_f64(rle_encoder *e, double v)
{
    e->values++;
    rle_write_u8(&e->w, TAG_F64);
    rle_write_f64(&e->w, v);
}

void rle_encode_integer(rle_encoder *e, int64_t v)
{
    e->values++;
    if (v >= 0 && v <= 127) {
        rle_write_u8(&e->w, (uint8_t)(TAG_SMALL | v));
        return;
    }
    rle_write_u8(&e->w, TAG_INTEGER);
    rle_write_varint(&e->w, (uint64_t)v << 1 ^ (uint64_t)(v >> 63));
}

void rle_encode_number(rle_encoder *e, double v)
{
    /* Beyond 2^53 a double is not every integer; -0 has a sign to keep. */
    if (v >= -9007199254740992.0 && v <= 9007199254740992.0) {
        int64_t i = (int64_t)v;
        if ((double)i == v && !(i == 0 && signbit(v))) {
            rle_encode_integer(e, i);
            return;
        }
    }
    rle_encode_f64(e, v);
}

void rle_encode_i64(rle_encoder *e, int64_t v)
{
    e->values++;
    rle_write_u8(&e->w, TAG_I64);
    rle_write_u64(&e->w, (uint64_t)v);
}

void rle_encode_u64(rle_encoder *e, uint64_t v)
{
    e->values++;
    rle_write_u8(&e->w, TAG_U64);
    rle_write_u64(&e->w, v);
}

rle_status rle_encode_string(rle_encoder *e, const char *s, size_t len)
{
    if (len > RLE_WIRE_STRING)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "a string of %zu bytes is over the limit of %d; send a u8 tensor", len,
                        RLE_WIRE_STRING);
    e->values++;
    if (len <= SHORT_STRING_MAX) {
        rle_write_u8(&e->w, (uint8_t)(TAG_SHORT_STRING | len));
    } else {
        rle_write_u8(&e->w, TAG_STRING);
        rle_write_varint(&e->w, len);
    }
    rle_write_bytes(&e->w, s, len);
    return RLE_OK;
}

static rle_status too_deep(void)
{
    return rle_fail(RLE_INVALID_ARGUMENT, "value nested deeper than %d", RLE_WIRE_DEPTH);
}

rle_status rle_encode_table(rle_encoder *e, uint32_t list, uint32_t pairs)
{
    if (e->depth >= RLE_WIRE_DEPTH) return too_deep();
    e->depth++;
    e->values++;
    rle_write_u8(&e->w, pairs ? TAG_TABLE : TAG_LIST);
    rle_write_varint(&e->w, list);
    if (pairs) rle_write_varint(&e->w, pairs);
    return RLE_OK;
}

rle_status rle_encode_error_mark(rle_encoder *e)
{
    if (e->depth >= RLE_WIRE_DEPTH) return too_deep();
    rle_write_u8(&e->w, TAG_ERROR);
    return RLE_OK;
}

rle_status rle_encode_tensor(rle_encoder *e, const rle_array *array, void *own)
{
    if (e->tensors == RLE_WIRE_TENSORS)
        return rle_fail(RLE_INVALID_ARGUMENT, "more than %d tensors in one message",
                        RLE_WIRE_TENSORS);
    size_t size = (size_t)rle_array_numel(array) * rle_dtype_size(array->dtype);
    e->values++;
    rle_write_u8(&e->w, TAG_TENSOR);
    rle_write_u8(&e->w, (uint8_t)array->dtype);
    rle_write_u8(&e->w, (uint8_t)array->ndim);
    for (int i = 0; i < array->ndim; i++) rle_write_varint(&e->w, (uint64_t)array->shape[i]);
    e->tensor_bytes = rle_align64(e->tensor_bytes) + size;
    int n = e->tensors++;
    e->tensor[n].data = array->data;
    e->tensor[n].size = size;
    e->tensor[n].own = own;
    return RLE_OK;
}

static void write_short(rle_writer *w, const char *s, size_t max)
{
    size_t n = strnlen(s, max);
    rle_write_u8(w, (uint8_t)n);
    rle_write_bytes(w, s, n);
}

void rle_encode_ref(rle_encoder *e, const rle_wire_ref *ref)
{
    e->values++;
    e->refs++;
    rle_write_u8(&e->w, TAG_REF);
    rle_write_u8(&e->w, (uint8_t)ref->kind);
    rle_write_u64(&e->w, ref->object);
    write_short(&e->w, ref->class_name, RLE_NAME_MAX);
    if (ref->kind != RLE_REF_THIRD) return;
    write_short(&e->w, ref->owner, RLE_NAME_MAX);
    rle_write_u64(&e->w, ref->incarnation);
    rle_write_bytes(&e->w, ref->ticket, RLE_TICKET_SIZE);
    rle_write_u8(&e->w, (uint8_t)ref->addresses);
    for (int i = 0; i < ref->addresses; i++)
        write_short(&e->w, ref->address[i], RLE_ADDRESS_MAX - 1);
}

rle_status rle_encoder_status(const rle_encoder *e)
{
    RLE_TRY(rle_writer_status(&e->w, "values of a message"));
    if (e->values > RLE_WIRE_VALUES)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "%u values in one message, the limit is %d; send numbers as a tensor",
                        e->values, RLE_WIRE_VALUES);
    if (rle_encoder_values_size(e) > UINT32_MAX)
        return rle_fail(
            RLE_INVALID_ARGUMENT,
            "%zu bytes of values in one message, the limit is 4 GiB; send bytes "
            "as a tensor",
            rle_encoder_values_size(e));
    return RLE_OK;
}

/* ---- reading ---- */

void rle_decoder_init(rle_decoder *d, const uint8_t *body, size_t body_size, size_t values,
                      int tensors)
{
    rle_reader_init(&d->r, body, values);
    d->body = body;
    d->body_size = body_size;
    d->tensor_at = rle_align64(values);
    d->values_left = RLE_WIRE_VALUES;
    d->depth = 0;
    d->tensors = 0;
    d->tensors_declared = tensors;
    d->placed = NULL;
}

static rle_status cut(void)
{
    return rle_fail(RLE_INVALID_ARGUMENT, "malformed values: cut short");
}

static rle_status decode_string(rle_decoder *d, uint64_t len, rle_value *out)
{
    if (len > RLE_WIRE_STRING)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "a string of %" PRIu64 " bytes is over the limit of %d", len,
                        RLE_WIRE_STRING);
    const uint8_t *p = rle_read_bytes(&d->r, (size_t)len);
    if (!p) return cut();
    out->kind = RLE_VALUE_STRING;
    out->u.string.data = (const char *)p;
    out->u.string.len = (size_t)len;
    return RLE_OK;
}

static rle_status decode_table(rle_decoder *d, bool pairs_too, rle_value *out)
{
    uint64_t list = rle_read_varint(&d->r);
    uint64_t pairs = pairs_too ? rle_read_varint(&d->r) : 0;
    size_t left = rle_reader_left(&d->r);
    if (d->r.failed || list > left || pairs > left / 2) return cut();
    if (list + 2 * pairs > d->values_left)
        return rle_fail(RLE_INVALID_ARGUMENT, "more than %d values in one message",
                        RLE_WIRE_VALUES);
    if (d->depth >= RLE_WIRE_DEPTH) return too_deep();
    d->depth++;
    out->kind = RLE_VALUE_TABLE;
    out->u.table.list = (uint32_t)list;
    out->u.table.pairs = (uint32_t)pairs;
    return RLE_OK;
}

/* "65536x65536" */
static void describe_shape(int ndim, const int64_t *shape, char *out, size_t size)
{
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < ndim && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%" PRId64, i ? "x" : "", shape[i]);
}

static const void *placed_data(const rle_placed *placed, size_t at)
{
    for (int i = 0; i < placed->count; i++) {
        const rle_placed_tensor *t = &placed->tensor[i];
        if (at >= t->at && at < t->at + t->size) return t->data + (at - t->at);
    }
    return NULL; /* a tensor without elements */
}

static rle_status decode_tensor(rle_decoder *d, rle_value *out)
{
    rle_wire_tensor *t = &out->u.tensor;
    unsigned dtype = rle_read_u8(&d->r), ndim = rle_read_u8(&d->r);
    if (d->r.failed) return cut();
    if (d->tensors >= d->tensors_declared)
        return rle_fail(RLE_INVALID_ARGUMENT, "more tensors than the frame declares (%d)",
                        d->tensors_declared);
    int number = d->tensors + 1;
    if (dtype >= RLE_DTYPE_COUNT)
        return rle_fail(RLE_INVALID_ARGUMENT, "tensor %d: unknown dtype %u", number, dtype);
    if (ndim > RLE_MAX_DIMS)
        return rle_fail(RLE_INVALID_ARGUMENT, "tensor %d: %u dimensions, the limit is %d",
                        number, ndim, RLE_MAX_DIMS);
    t->dtype = (rle_dtype)dtype;
    t->ndim = (int)ndim;
    uint64_t size = rle_dtype_size(t->dtype);
    bool overflow = false, empty = false;
    for (unsigned i = 0; i < ndim; i++) {
        uint64_t n = rle_read_varint(&d->r);
        if (n > INT64_MAX) overflow = true;
        t->shape[i] = (int64_t)n;
        if (n == 0) empty = true;
        /* A size of 0 does not help the others: strides are products of some of them. */
        if (n && __builtin_mul_overflow(size, n, &size)) overflow = true;
    }
    if (d->r.failed) return cut();
    if (size > INT64_MAX) overflow = true;
    if (empty) size = 0;
    size_t at = rle_align64(d->tensor_at);
    size_t have = at < d->body_size ? d->body_size - at : 0;
    if (overflow || size > have) {
        char shape[192];
        describe_shape(t->ndim, t->shape, shape, sizeof shape);
        if (overflow)
            return rle_fail(RLE_INVALID_ARGUMENT,
                            "tensor %d: shape %s %s is larger than any memory", number, shape,
                            rle_dtype_name(t->dtype));
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "tensor %d: shape %s %s needs %" PRIu64 " bytes, frame has %zu", number,
                        shape, rle_dtype_name(t->dtype), size, have);
    }
    t->size = (size_t)size;
    t->at = at;
    t->number = d->tensors;
    t->data = d->placed ? placed_data(d->placed, at) : d->body + at;
    d->tensor_at = at + t->size;
    d->tensors++;
    out->kind = RLE_VALUE_TENSOR;
    return RLE_OK;
}

static bool read_short(rle_reader *r, char *out, size_t max)
{
    size_t n = rle_read_u8(r);
    const uint8_t *p = rle_read_bytes(r, n);
    if (!p || n > max || memchr(p, 0, n)) {
        r->failed = true;
        return false;
    }
    memcpy(out, p, n);
    out[n] = 0;
    return true;
}

static rle_status decode_ref(rle_decoder *d, rle_value *out)
{
    rle_wire_ref *ref = &out->u.ref;
    rle_reader *r = &d->r;
    uint8_t kind = rle_read_u8(r);
    ref->object = rle_read_u64(r);
    read_short(r, ref->class_name, RLE_NAME_MAX);
    ref->addresses = 0;
    ref->owner[0] = 0;
    if (r->failed) return cut();
    if (kind > RLE_REF_THIRD || ref->object == 0)
        return rle_fail(RLE_INVALID_ARGUMENT, "malformed reference");
    if (kind == RLE_REF_THIRD) {
        read_short(r, ref->owner, RLE_NAME_MAX);
        ref->incarnation = rle_read_u64(r);
        const uint8_t *ticket = rle_read_bytes(r, RLE_TICKET_SIZE);
        if (ticket) memcpy(ref->ticket, ticket, RLE_TICKET_SIZE);
        uint8_t n = rle_read_u8(r);
        if (n > RLE_REF_ADDRESSES) r->failed = true;
        for (int i = 0; i < n && !r->failed; i++)
            read_short(r, ref->address[i], RLE_ADDRESS_MAX - 1);
        if (r->failed || !rle_name_ok(ref->owner, strlen(ref->owner)))
            return rle_fail(RLE_INVALID_ARGUMENT, "malformed reference");
        ref->addresses = n;
    }
    ref->kind = (rle_ref_kind)kind;
    out->kind = RLE_VALUE_REF;
    return RLE_OK;
}

rle_status rle_decode(rle_decoder *d, rle_value *out)
{
    uint8_t tag = rle_read_u8(&d->r);
    if (d->r.failed) return cut();
    if (d->values_left-- == 0) {
        d->values_left = 0;
        return rle_fail(RLE_INVALID_ARGUMENT, "more than %d values in one message",
                        RLE_WIRE_VALUES);
    }
    if (tag & TAG_SMALL) {
        out->kind = RLE_VALUE_INTEGER;
        out->u.integer = tag & 0x7f;
        return RLE_OK;
    }
    if (tag >= TAG_SHORT_STRING && tag <= TAG_SHORT_STRING + SHORT_STRING_MAX)
        return decode_string(d, tag - TAG_SHORT_STRING, out);
    switch (tag) {
    case TAG_NIL:
        out->kind = RLE_VALUE_NIL;
        return RLE_OK;
    case TAG_FALSE:
    case TAG_TRUE:
        out->kind = RLE_VALUE_BOOL;
        out->u.boolean = tag == TAG_TRUE;
        return RLE_OK;
    case TAG_F64:
        out->kind = RLE_VALUE_NUMBER;
        out->u.number = rle_read_f64(&d->r);
        return d->r.failed ? cut() : RLE_OK;
    case TAG_INTEGER: {
        uint64_t v = rle_read_varint(&d->r);
        out->kind = RLE_VALUE_INTEGER;
        out->u.integer = (int64_t)(v >> 1 ^ (0 - (v & 1)));
        return d->r.failed ? cut() : RLE_OK;
    }
    case TAG_I64:
        out->kind = RLE_VALUE_I64;
        out->u.integer = (int64_t)rle_read_u64(&d->r);
        return d->r.failed ? cut() : RLE_OK;
    case TAG_U64:
        out->kind = RLE_VALUE_U64;
        out->u.u64 = rle_read_u64(&d->r);
        return d->r.failed ? cut() : RLE_OK;
    case TAG_STRING: {
        uint64_t len = rle_read_varint(&d->r);
        return d->r.failed ? cut() : decode_string(d, len, out);
    }
    case TAG_LIST:
    case TAG_TABLE:
        return decode_table(d, tag == TAG_TABLE, out);
    case TAG_TENSOR:
        return decode_tensor(d, out);
    case TAG_REF:
        return decode_ref(d, out);
    case TAG_ERROR:
        out->kind = RLE_VALUE_ERROR;
        return RLE_OK;
    default:
        return rle_fail(RLE_INVALID_ARGUMENT, "malformed values: unknown tag %02x", tag);
    }
}

rle_status rle_decode_key(rle_decoder *d, rle_value *out)
{
    RLE_TRY(rle_decode(d, out));
    switch (out->kind) {
    case RLE_VALUE_NUMBER:
        if (!isnan(out->u.number)) return RLE_OK;
        break;
    case RLE_VALUE_BOOL:
    case RLE_VALUE_INTEGER:
    case RLE_VALUE_I64:
    case RLE_VALUE_STRING:
        return RLE_OK;
    default:
        break;
    }
    return rle_fail(RLE_INVALID_ARGUMENT, "malformed values: no key of a table");
}

rle_status rle_decode_skip(rle_decoder *d, void (*visit)(void *self, const rle_value *v),
                           void *self)
{
    /* What is still to come on each level; a table adds a level. */
    struct {
        uint32_t list, pairs;
        bool value; /* the value of a pair is next */
    } level[RLE_WIRE_DEPTH + 1];
    int top = 0;
    level[0].list = 1;
    level[0].pairs = 0;
    level[0].value = false;
    int base = d->depth;
    bool error_mark = false;
    while (top >= 0) {
        if (level[top].list == 0 && level[top].pairs == 0) {
            if (top-- > 0) rle_decode_leave(d);
            continue;
        }
        rle_value v;
        if (level[top].list == 0 && !level[top].value && !error_mark) {
            RLE_TRY(rle_decode_key(d, &v));
            level[top].value = true;
            if (visit) visit(self, &v);
            continue;
        }
        RLE_TRY(rle_decode(d, &v));
        if (error_mark && v.kind != RLE_VALUE_TABLE)
            return rle_fail(RLE_INVALID_ARGUMENT, "malformed values: no error object");
        error_mark = v.kind == RLE_VALUE_ERROR;
        if (visit) visit(self, &v);
        if (error_mark) continue;
        if (level[top].list) {
            level[top].list--;
        } else {
            level[top].pairs--;
            level[top].value = false;
        }
        if (v.kind == RLE_VALUE_TABLE) {
            top = d->depth - base;
            level[top].list = v.u.table.list;
            level[top].pairs = v.u.table.pairs;
            level[top].value = false;
        }
    }
    return RLE_OK;
}

rle_status rle_decode_end(const rle_decoder *d)
{
    if (rle_reader_left(&d->r) != 0)
        return rle_fail(RLE_INVALID_ARGUMENT, "malformed values: %zu bytes too many",
                        rle_reader_left(&d->r));
    if (d->tensors != d->tensors_declared || (d->tensors && d->tensor_at != d->body_size))
        return rle_fail(RLE_INVALID_ARGUMENT, "the frame's tensors do not fill it");
    return RLE_OK;
}

/* ---- heads ---- */

void rle_encode_call_head(rle_encoder *e, const rle_call_head *head)
{
    rle_write_u64(&e->w, head->object);
    rle_write_u8(&e->w, head->construct);
    rle_write_u8(&e->w, head->method_len);
    rle_write_bytes(&e->w, head->method, head->method_len);
    rle_write_u16(&e->w, head->args);
}

rle_status rle_decode_call_head(rle_decoder *d, rle_call_head *out)
{
    out->object = rle_read_u64(&d->r);
    out->construct = rle_read_u8(&d->r);
    out->method_len = rle_read_u8(&d->r);
    const uint8_t *method = rle_read_bytes(&d->r, out->method_len);
    out->args = rle_read_u16(&d->r);
    if (d->r.failed || !method) return cut();
    if (out->method_len < 1 || out->method_len > RLE_NAME_MAX || out->construct > 1 ||
        memchr(method, 0, out->method_len))
        return rle_fail(RLE_INVALID_ARGUMENT, "malformed call");
    memcpy(out->method, method, out->method_len);
    out->method[out->method_len] = 0;
    return RLE_OK;
}

void rle_encode_result_head(rle_encoder *e, uint16_t count)
{
    rle_write_u16(&e->w, count);
}

void rle_encode_result_count(rle_encoder *e, uint16_t count)
{
    if (e->w.len >= RLE_FRAME_HEADER + 2) rle_put16(e->w.data + RLE_FRAME_HEADER, count);
}

rle_status rle_decode_result_head(rle_decoder *d, uint16_t *count)
{
    *count = rle_read_u16(&d->r);
    return d->r.failed ? cut() : RLE_OK;
}
