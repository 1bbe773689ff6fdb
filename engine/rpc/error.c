/* error.c - errors as the body of an ERROR frame: fields of a byte, a length and text.
 *
 * Unknown fields are skipped, so that later versions may say more. */
#include "rpc/rpc.h"

#include <string.h>

enum {
    FIELD_MESSAGE = 1,
    FIELD_WORKER,
    FIELD_METHOD,
    FIELD_WHERE,
    FIELD_TRACEBACK,
    FIELD_OUTCOME,
    FIELD_VIA,
    FIELD_DATA,
    FIELD_CODE
};

enum { MESSAGE_MAX = 8 << 10, TRACEBACK_MAX = 32 << 10, DATA_MAX = 256 << 10 };

static rle_slice slice(const char *text)
{
    return (rle_slice){text, text ? strlen(text) : 0};
}

rle_wire_error rle_error_of(rle_status code, rle_outcome outcome, const char *message,
                            const char *worker, const char *method)
{
    return (rle_wire_error){.code = code,
                            .outcome = outcome,
                            .message = slice(message),
                            .worker = slice(worker),
                            .method = slice(method)};
}

static void put(rle_writer *w, int field, rle_slice s, size_t max)
{
    if (!s.n) return;
    size_t n = s.n < max ? s.n : max;
    rle_write_u8(w, (uint8_t)field);
    rle_write_varint(w, n);
    rle_write_bytes(w, s.p, n);
}

void rle_error_encode(rle_writer *w, const rle_wire_error *e)
{
    char code = (char)e->code, outcome = (char)e->outcome;
    put(w, FIELD_CODE, (rle_slice){&code, 1}, 1);
    put(w, FIELD_MESSAGE, e->message, MESSAGE_MAX);
    put(w, FIELD_WORKER, e->worker, RLE_NAME_MAX);
    put(w, FIELD_METHOD, e->method, RLE_NAME_MAX);
    put(w, FIELD_WHERE, e->where, 512);
    put(w, FIELD_TRACEBACK, e->traceback, TRACEBACK_MAX);
    if (e->outcome) put(w, FIELD_OUTCOME, (rle_slice){&outcome, 1}, 1);
    for (int i = 0; i < e->hops; i++) put(w, FIELD_VIA, e->via[i], RLE_NAME_MAX);
    if (e->data.n <= DATA_MAX) put(w, FIELD_DATA, e->data, DATA_MAX);
}

rle_status rle_error_decode(const rle_msg *m, rle_wire_error *out)
{
    rle_reader r;
    rle_wire_error e = {.code = RLE_UNKNOWN};
    rle_reader_init(&r, m->data, m->values);
    while (rle_reader_left(&r) && !r.failed) {
        uint8_t field = rle_read_u8(&r);
        uint64_t n = rle_read_varint(&r);
        const uint8_t *p = n <= rle_reader_left(&r) ? rle_read_bytes(&r, (size_t)n) : NULL;
        if (!p) {
            r.failed = true;
            break;
        }
        rle_slice s = {(const char *)p, (size_t)n};
        switch (field) {
        case FIELD_MESSAGE: e.message = s; break;
        case FIELD_WORKER: e.worker = s; break;
        case FIELD_METHOD: e.method = s; break;
        case FIELD_WHERE: e.where = s; break;
        case FIELD_TRACEBACK: e.traceback = s; break;
        case FIELD_DATA: e.data = s; break;
        case FIELD_OUTCOME:
            if (n == 1 && p[0] <= RLE_OUTCOME_UNKNOWN) e.outcome = (rle_outcome)p[0];
            break;
        case FIELD_CODE:
            if (n == 1 && p[0] > 0 && p[0] < RLE_STATUS_COUNT) e.code = (rle_status)p[0];
            break;
        case FIELD_VIA:
            if (e.hops < RLE_ERROR_HOPS) e.via[e.hops++] = s;
            break;
        default:
            break;
        }
    }
    if (r.failed) return rle_fail(RLE_INVALID_ARGUMENT, "malformed error");
    *out = e;
    return RLE_OK;
}
