/* message.c - what ranks of a group call each other with: written, and read again. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "comm/comm_internal.h"

enum { ARGS = 11 };
/* The call itself may take longer: the owner is to say at the deadline who is missing. */
#define PATIENCE (10 * RLE_SECONDS)
#define TELL_TIME                                                                        \
    (30 * RLE_SECONDS) /* who has not made the group yet keeps it so long                \
                        */

static rle_array bytes_array(const uint8_t *data, size_t size)
{
    rle_array a = {
        .data = (void *)data, .dtype = RLE_U8, .ndim = 1, .shape = {(int64_t)size}};
    rle_array_set_contiguous(&a);
    return a;
}

static rle_status encode_bytes(rle_encoder *e, const uint8_t *data, size_t size)
{
    rle_array a = bytes_array(data, size);
    if (size) return rle_encode_tensor(e, &a, NULL);
    rle_encode_nil(e);
    return RLE_OK;
}

int64_t rle_comm_oldest_open(const rle_comm_group *g, uint64_t number)
{
    for (const rle_comm_round *round = g->rounds; round; round = round->next)
        if (round->entered && !round->code && round->number < number)
            number = round->number;
    return (int64_t)number;
}

/* `round`: whose data it lends, or NULL. */
static rle_status post(const rle_comm_group *g, int rank, const rle_comm_message *m,
                       rle_comm_round *round, rle_service_over *over, void *self,
                       rle_future **out)
{
    static const char method[] = RLE_COMM_METHOD;
    rle_encoder *e = &g->comm->encoder;
    rle_call_head head = {.method_len = sizeof method - 1, .args = ARGS};
    memcpy(head.method, method, sizeof method - 1);
    rle_encoder_reset(e);
    e->lent = round ? &round->lent : NULL;
    rle_encode_call_head(e, &head);
    RLE_TRY(rle_encode_string(e, g->id, strlen(g->id)));
    rle_encode_integer(e, m->number);
    rle_encode_integer(e, m->part);
    rle_encode_integer(e, m->oldest);
    rle_encode_integer(e, g->rank);
    rle_encode_integer(e, (int64_t)g->life);
    rle_encode_f64(e, m->timeout);
    rle_encode_f64(e, m->left);
    RLE_TRY(rle_encode_string(e, m->title.p, m->title.n));
    RLE_TRY(rle_encode_string(e, m->spec.p, m->spec.n));
    if (m->part < 0)
        rle_encode_integer(e, m->code);
    else
        RLE_TRY(encode_bytes(e, m->data, m->size));
    rle_call_spec call = {.peer = g->member[rank].peer,
                          .method = RLE_COMM_METHOD,
                          .timeout = (int64_t)(m->left * RLE_SECONDS) + PATIENCE,
                          .nested = true,
                          .quiet = true,
                          .site = round ? round->c.site : 0};
    return rle_service_call(g->comm->rpc, &call, e, over, self, out);
}

static rle_slice slice(const char *text)
{
    return (rle_slice){text, strlen(text)};
}

rle_status rle_comm_send(rle_comm_round *round, int rank, int64_t part,
                         const uint8_t *data, size_t size, rle_service_over *over,
                         void *self, rle_future **out)
{
    rle_comm_group *g = round->group;
    RLE_TRY(rle_comm_announce(g, rank));
    int64_t left = part < 0 ? TELL_TIME : round->deadline - rle_now();
    rle_comm_message m = {.title = slice(round->title),
                          .spec = slice(part < 0 ? round->why : round->spec),
                          .number = (int64_t)round->number,
                          .part = part,
                          .oldest = rle_comm_oldest_open(g, round->number),
                          .timeout = (double)round->c.timeout / RLE_SECONDS,
                          .left = left > 0 ? (double)left / RLE_SECONDS : 0,
                          .code = round->code,
                          .data = data,
                          .size = size};
    return post(g, rank, &m, round, over, self, out);
}

rle_status rle_comm_tell_and_hear(const rle_comm_group *g, int rank, int64_t part,
                                  uint64_t number, rle_status code, const char *words,
                                  rle_service_over *over, void *self, rle_future **out)
{
    rle_comm_message m = {.title = slice(""),
                          .spec = slice(words),
                          .number = (int64_t)number,
                          .part = part,
                          .oldest = (int64_t)number,
                          .left = (double)TELL_TIME / RLE_SECONDS,
                          .code = code};
    return post(g, rank, &m, NULL, over, self, out);
}

void rle_comm_tell(const rle_comm_group *g, int rank, int64_t part, uint64_t number,
                   rle_status code, const char *words)
{
    rle_future *f;
    if (rank == g->rank || !rle_service_connected(g->member[rank].peer)) return;
    if (rle_comm_tell_and_hear(g, rank, part, number, code, words, NULL, NULL, &f) ==
        RLE_OK)
        rle_service_release(f);
}

rle_encoder *rle_comm_answer(rle_comm *comm, rle_comm_round *round, const uint8_t *data,
                             size_t size)
{
    rle_encoder *e = &comm->encoder;
    rle_encoder_reset(e);
    e->lent = round ? &round->lent : NULL;
    rle_encode_result_head(e, 1);
    encode_bytes(e, data, size); /* what fails is found when it is sent */
    return e;
}

bool rle_comm_fits(rle_comm_round *round, const rle_comm_held *held, size_t size)
{
    enum { HEAD = RLE_TENSOR_ALIGN }; /* of an answer, before its tensor */
    uint64_t limit = rle_service_limit(held->in);
    if (!size || size + HEAD <= limit) return true;
    rle_comm_round_fail(
        round, false, RLE_RESOURCE_EXHAUSTED,
        "%s: a result of %zu bytes is over the limit of %llu bytes of rank %d (worker "
        "\"%s\") (max_message)",
        round->title, size, (unsigned long long)limit, held->rank,
        rle_peer_name(round->group->member[held->rank].peer));
    return false;
}

static bool text(const rle_value *v, size_t max, rle_slice *out)
{
    *out = (rle_slice){v->u.string.data, v->u.string.len};
    return v->kind == RLE_VALUE_STRING && v->u.string.len < max;
}

rle_status rle_comm_read(const rle_incoming *in, rle_comm_message *m)
{
    enum { GROUP, NUMBER, PART, OLDEST, RANK, LIFE, TIMEOUT, LEFT, TITLE, SPEC, DATA };
    rle_value v[ARGS];
    rle_decoder d;
    rle_service_decoder(in, &d);
    for (int i = 0; i < ARGS; i++) RLE_TRY(rle_decode(&d, &v[i]));
    RLE_TRY(rle_decode_end(&d));
    *m = (rle_comm_message){.number = v[NUMBER].u.integer,
                            .part = v[PART].u.integer,
                            .oldest = v[OLDEST].u.integer,
                            .rank = (int)v[RANK].u.integer,
                            .life = (uint64_t)v[LIFE].u.integer,
                            .timeout = v[TIMEOUT].u.number,
                            .left = v[LEFT].u.number};
    bool good = text(&v[GROUP], 2 * RLE_NAME_MAX, &m->group) &&
                text(&v[TITLE], RLE_COMM_TITLE, &m->title) &&
                text(&v[SPEC], 512, &m->spec);
    for (int i = NUMBER; i <= LIFE; i++) good = good && v[i].kind == RLE_VALUE_INTEGER;
    good = good && v[TIMEOUT].kind == RLE_VALUE_NUMBER &&
           v[LEFT].kind == RLE_VALUE_NUMBER && m->left >= 0 && m->left < 2e9 &&
           m->number >= 1 && m->oldest >= 1 && m->oldest <= m->number &&
           m->part >= RLE_COMM_LAST && m->part <= INT32_MAX && v[RANK].u.integer >= 0 &&
           v[RANK].u.integer < RLE_COMM_MAX_RANKS && v[LIFE].u.integer >= 1;
    if (good && m->part < 0) {
        bool failed = m->part == RLE_COMM_FAILED || m->part == RLE_COMM_REFUSED;
        good = v[DATA].kind == RLE_VALUE_INTEGER && v[DATA].u.integer >= failed &&
               v[DATA].u.integer < RLE_STATUS_COUNT;
        m->code = good ? (rle_status)v[DATA].u.integer : RLE_OK;
    } else if (v[DATA].kind == RLE_VALUE_TENSOR) {
        m->data = v[DATA].u.tensor.data;
        m->size = v[DATA].u.tensor.size;
    } else {
        good = good && v[DATA].kind == RLE_VALUE_NIL;
    }
    return good ? RLE_OK
                : rle_fail(RLE_INVALID_ARGUMENT, "malformed call of a collective");
}

rle_status rle_comm_take_answer(const rle_comm_round *round, const rle_comm_piece *p,
                                rle_future *f)
{
    rle_decoder d;
    rle_value v;
    uint16_t count;
    rle_msg_decoder(rle_future_message(f), &d);
    RLE_TRY(rle_decode_result_head(&d, &count));
    if (count != 1) return rle_fail(RLE_INTERNAL, "malformed answer");
    RLE_TRY(rle_decode(&d, &v));
    size_t size = v.kind == RLE_VALUE_TENSOR ? v.u.tensor.size : 0;
    if (size != p->get_size)
        return rle_fail(RLE_INTERNAL, "an answer of %zu bytes in place of %zu", size,
                        p->get_size);
    if (size && !round->dropped) memcpy(round->c.data + p->get, v.u.tensor.data, size);
    return RLE_OK;
}
