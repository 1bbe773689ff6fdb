/* comm_rpc.c - groups whose bytes move over the remote calls of their workers: the
 * messages, and where they belong. How it goes is told in comm_internal.h. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "comm/comm_internal.h"

enum {
    AHEAD_MAX = 1024, /* collectives that a rank may be ahead of this one */
    EARLY_MAX = 3 * AHEAD_MAX, /* calls of a rank that wait for their group to be made */
    ARGS = 10
};
/* The call itself may take longer: the owner is to say at the deadline who is missing. */
#define PATIENCE (10 * RLE_SECONDS)
#define TELL_TIME (30 * RLE_SECONDS) /* who has not made the group yet keeps it so long  \
                                      */

/* ---- messages ---- */

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

static int64_t oldest_open(const rle_comm_group *g, uint64_t number)
{
    for (const rle_comm_round *round = g->rounds; round; round = round->next)
        if (round->entered && !round->code && round->number < number)
            number = round->number;
    return (int64_t)number;
}

rle_status rle_comm_send(rle_comm_round *round, int rank, int64_t part,
                         const uint8_t *data, size_t size, rle_service_over *over,
                         void *self, rle_future **out)
{
    static const char method[] = RLE_COMM_METHOD;
    const rle_comm_group *g = round->group;
    rle_encoder *e = &g->comm->encoder;
    rle_call_head head = {.method_len = sizeof method - 1, .args = ARGS};
    memcpy(head.method, method, sizeof method - 1);
    const char *spec = part < 0 ? round->why : round->spec;
    int64_t left = part < 0 ? TELL_TIME : round->deadline - rle_now();
    if (left < 0) left = 0;
    rle_encoder_reset(e);
    e->lent = &round->lent;
    rle_encode_call_head(e, &head);
    RLE_TRY(rle_encode_string(e, g->id, strlen(g->id)));
    rle_encode_integer(e, (int64_t)round->number);
    rle_encode_integer(e, part);
    rle_encode_integer(e, oldest_open(g, round->number));
    rle_encode_integer(e, g->rank);
    rle_encode_f64(e, (double)round->c.timeout / RLE_SECONDS);
    rle_encode_f64(e, (double)left / RLE_SECONDS);
    RLE_TRY(rle_encode_string(e, round->title, strlen(round->title)));
    RLE_TRY(rle_encode_string(e, spec, strlen(spec)));
    if (part < 0)
        rle_encode_integer(e, round->code);
    else
        RLE_TRY(encode_bytes(e, data, size));
    rle_call_spec call = {.peer = g->member[rank].peer,
                          .method = RLE_COMM_METHOD,
                          .timeout = left + PATIENCE,
                          .nested = true,
                          .quiet = true,
                          .site = round->c.site};
    return rle_service_call(g->comm->rpc, &call, e, over, self, out);
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
    enum { GROUP, NUMBER, PART, OLDEST, RANK, TIMEOUT, LEFT, TITLE, SPEC, DATA };
    rle_value v[ARGS];
    rle_decoder d;
    rle_service_decoder(in, &d);
    for (int i = 0; i < ARGS; i++) RLE_TRY(rle_decode(&d, &v[i]));
    RLE_TRY(rle_decode_end(&d));
    *m = (rle_comm_message){.number = v[NUMBER].u.integer,
                            .part = v[PART].u.integer,
                            .oldest = v[OLDEST].u.integer,
                            .rank = (int)v[RANK].u.integer,
                            .timeout = v[TIMEOUT].u.number,
                            .left = v[LEFT].u.number};
    bool good = text(&v[GROUP], 2 * RLE_NAME_MAX, &m->group) &&
                text(&v[TITLE], RLE_COMM_TITLE, &m->title) &&
                text(&v[SPEC], 512, &m->spec);
    for (int i = NUMBER; i <= RANK; i++) good = good && v[i].kind == RLE_VALUE_INTEGER;
    good = good && v[TIMEOUT].kind == RLE_VALUE_NUMBER &&
           v[LEFT].kind == RLE_VALUE_NUMBER && m->left >= 0 && m->left < 2e9 &&
           m->number >= 1 && m->oldest >= 1 && m->oldest <= m->number && m->part >= -1 &&
           m->part <= INT32_MAX && v[RANK].u.integer >= 0 &&
           v[RANK].u.integer < RLE_COMM_MAX_RANKS;
    if (good && m->part < 0) {
        good = v[DATA].kind == RLE_VALUE_INTEGER && v[DATA].u.integer > 0 &&
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

/* ---- calls that arrive ---- */

static rle_comm_group *find_group(const rle_comm *comm, const rle_slice *id)
{
    rle_comm_group *g = comm->groups;
    while (g && !(strlen(g->id) == id->n && memcmp(g->id, id->p, id->n) == 0))
        g = g->next;
    return g;
}

static void refuse(rle_incoming *in, rle_status code, const char *fmt, ...)
    RLE_PRINTF(3, 4);
static void refuse(rle_incoming *in, rle_status code, const char *fmt, ...)
{
    char message[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    rle_service_fail(in, code, message);
}

/* ---- calls for groups that are not made yet ----
 *
 * Who called withdraws them when its time is over. */

static void keep_early(rle_comm *comm, rle_incoming *in, const rle_comm_message *m,
                       int64_t deadline)
{
    size_t theirs = 0;
    rle_comm_held **at = &comm->early;
    for (; *at; at = &(*at)->next)
        theirs += rle_service_caller((*at)->in) == rle_service_caller(in);
    rle_comm_held *h = theirs < EARLY_MAX ? rle_malloc(sizeof *h) : NULL;
    if (!h) {
        refuse(in, RLE_RESOURCE_EXHAUSTED, "%.*s: \"%s\" has not made the group",
               (int)m->title.n, m->title.p, rle_rpc_name(comm->rpc));
        return;
    }
    *h = (rle_comm_held){.in = in, .deadline = deadline};
    *at = h; /* in the order in which they came */
}

/* The caller's names stand in another order. If it is a member the collective cannot come
 * to anything, here and at those who wait for it. */
static void misplaced(rle_comm_group *g, rle_incoming *in, const rle_comm_message *m,
                      const rle_peer *caller)
{
    char why[512];
    uint64_t number = (uint64_t)m->number;
    snprintf(
        why, sizeof why,
        "\"%s\" says that it is rank %d of the group, at \"%s\" that is %s: give the "
        "names in the same order everywhere",
        rle_peer_name(caller), m->rank, rle_rpc_name(g->comm->rpc),
        m->rank < g->size ? rle_peer_name(g->member[m->rank].peer) : "nobody");
    int at = 0;
    while (at < g->size && g->member[at].peer != caller) at++;
    rle_comm_round *round = rle_comm_round_find(g, number);
    if (!round && at < g->size && number > g->begun && number <= g->begun + AHEAD_MAX &&
        rle_comm_round_new(g, number, &round) != RLE_OK)
        round = NULL;
    if (round && at < g->size)
        rle_comm_round_fail(round, false, RLE_INVALID_ARGUMENT, "%s", why);
    rle_service_fail(in, RLE_INVALID_ARGUMENT, why);
}

static void group_call(rle_comm_group *g, rle_incoming *in, const rle_comm_message *m,
                       const rle_peer *caller, int64_t deadline)
{
    const char *here = rle_rpc_name(g->comm->rpc);
    uint64_t number = (uint64_t)m->number;
    if (m->rank >= g->size || g->member[m->rank].peer != caller) {
        misplaced(g, in, m, caller);
        return;
    }
    rle_comm_member *member = &g->member[m->rank];
    rle_comm_round *round = rle_comm_round_find(g, number);
    bool over = round ? rle_comm_round_answered(round, m->part) : number <= g->good;
    if (over && m->part >= 0 && !member->lost) member->again = true;
    if (member->again) {
        keep_early(g->comm, in, m, deadline);
        return;
    }
    if ((uint64_t)m->oldest > member->oldest) {
        member->oldest = (uint64_t)m->oldest;
        for (rle_comm_round *other = g->rounds; other; other = other->next)
            if (other->number < member->oldest) rle_comm_round_passed(other, m->rank);
    }
    /* Over here before this rank has called: then it has failed. */
    if (!round && number <= g->begun) {
        if (m->part < 0)
            rle_service_reply(in, rle_comm_answer(g->comm, NULL, NULL, 0));
        else if (number == g->failed)
            rle_service_fail(in, g->failed_code, g->failed_why);
        else
            refuse(in, RLE_UNAVAILABLE,
                   "%.*s: rank %d (worker \"%s\") gave it up, and is at collective %llu",
                   (int)m->title.n, m->title.p, g->rank, here,
                   (unsigned long long)g->begun);
        return;
    }
    if (!round && number > g->begun + AHEAD_MAX) {
        refuse(in, RLE_RESOURCE_EXHAUSTED, "%.*s: \"%s\" is %llu collectives behind",
               (int)m->title.n, m->title.p, here,
               (unsigned long long)(number - g->begun));
        return;
    }
    if (!round && rle_comm_round_new(g, number, &round) != RLE_OK) {
        refuse(in, RLE_RESOURCE_EXHAUSTED, "%.*s: rank %d: %s", (int)m->title.n,
               m->title.p, g->rank, rle_message());
        return;
    }
    rle_comm_round_call(round, in, m, deadline);
}

/* Those that wait for this one. */
static void take_early(rle_comm_group *g)
{
    rle_comm *comm = g->comm;
    for (rle_comm_held **at = &comm->early; *at;) {
        rle_comm_held *h = *at;
        rle_comm_message m;
        if (rle_comm_read(h->in, &m) != RLE_OK || find_group(comm, &m.group) != g) {
            at = &h->next;
            continue;
        }
        *at = h->next;
        rle_incoming *in = h->in;
        int64_t deadline = h->deadline;
        rle_free(h);
        group_call(g, in, &m, rle_service_caller(in), deadline);
        at = &comm->early;
    }
}

/* ---- the service ---- */

static void arrived(rle_service *s, rle_incoming *in, const rle_incoming_info *info)
{
    rle_comm *comm = (rle_comm *)s;
    rle_comm_message m;
    if (rle_comm_read(in, &m) != RLE_OK) {
        rle_service_fail(in, RLE_INVALID_ARGUMENT, rle_message());
        return;
    }
    rle_comm_group *g = find_group(comm, &m.group);
    int64_t deadline = rle_now() + (int64_t)(m.left * RLE_SECONDS);
    if (g)
        group_call(g, in, &m, info->caller, deadline);
    else
        keep_early(comm, in, &m, deadline);
}

static bool take_out(rle_comm_held **list, const rle_incoming *in, rle_comm_held *out)
{
    for (; *list; list = &(*list)->next) {
        rle_comm_held *h = *list;
        if (h->in != in) continue;
        *list = h->next;
        *out = *h;
        rle_free(h);
        return true;
    }
    return false;
}

static void forgotten(rle_service *s, rle_incoming *in)
{
    rle_comm *comm = (rle_comm *)s;
    rle_comm_held h;
    if (take_out(&comm->early, in, &h)) return;
    for (rle_comm_group *g = comm->groups; g; g = g->next)
        for (rle_comm_round *round = g->rounds; round; round = round->next)
            if (take_out(&round->held, in, &h)) {
                rle_comm_round_forget(round, &h);
                return;
            }
}

static void worker_gone(rle_service *s, rle_peer *peer, const char *reason, bool goodbye)
{
    rle_comm *comm = (rle_comm *)s;
    for (rle_comm_group *g = comm->groups; g; g = g->next)
        for (int r = 0; r < g->size; r++) {
            rle_comm_member *m = &g->member[r];
            if (m->peer != peer) continue;
            m->gone = m->owed = m->lost = true;
            m->goodbye = goodbye;
            snprintf(m->why, sizeof m->why, "%s", reason);
            for (rle_comm_round *round = g->rounds; round; round = round->next)
                if (rle_comm_round_gone(round, r)) m->owed = false;
        }
}

static void settle_now(rle_timer *t)
{
    rle_comm_settle((rle_comm *)((char *)t - offsetof(rle_comm, settle)));
}

static void free_group(rle_comm_group *g)
{
    rle_comm *comm = g->comm;
    /* Those that are left were never entered, or their works are closed. */
    while (g->rounds) rle_comm_round_free(g->rounds, false);
    rle_comm_group **at = &comm->groups;
    while (*at != g) at = &(*at)->next;
    *at = g->next;
    rle_free(g);
}

static void closed(rle_service *s)
{
    rle_comm *comm = (rle_comm *)s;
    rle_service_timer_off(comm->rpc, &comm->settle);
    for (rle_comm_group *g = comm->groups; g; g = g->next)
        for (rle_comm_round *round = g->rounds; round; round = round->next)
            rle_comm_round_stop(round);
    rle_comm_works_close(comm);
    while (comm->groups) free_group(comm->groups);
    while (comm->early) {
        rle_comm_held *h = comm->early;
        comm->early = h->next;
        rle_free(h);
    }
    rle_encoder_fini(&comm->encoder);
    rle_free(comm);
}

rle_status rle_comm_open(rle_rpc *rpc, rle_comm **out)
{
    rle_comm *comm = rle_calloc(1, sizeof *comm);
    if (!comm) return rle_oom(sizeof *comm, "collectives");
    comm->service = (rle_service){.method = RLE_COMM_METHOD,
                                  .call = arrived,
                                  .forget = forgotten,
                                  .gone = worker_gone,
                                  .closed = closed};
    comm->rpc = rpc;
    comm->settle.fire = settle_now;
    rle_encoder_init(&comm->encoder);
    rle_service_enter(rpc);
    rle_status s = rle_service_open(rpc, &comm->service);
    rle_service_leave(rpc);
    if (s != RLE_OK) {
        rle_encoder_fini(&comm->encoder);
        rle_free(comm);
        return s;
    }
    *out = comm;
    return RLE_OK;
}

/* ---- groups ---- */

static rle_status check_names(const rle_comm *comm, const char *const *names, int count,
                              int *rank)
{
    *rank = -1;
    if (count < 1 || count > RLE_COMM_MAX_RANKS)
        return rle_fail(RLE_INVALID_ARGUMENT, "a group has 1 to %d workers, not %d",
                        RLE_COMM_MAX_RANKS, count);
    for (int i = 0; i < count; i++) {
        if (!rle_name_ok(names[i], strlen(names[i])))
            return rle_fail(RLE_INVALID_ARGUMENT, "\"%.80s\" is no worker's name",
                            names[i]);
        for (int j = 0; j < i; j++)
            if (strcmp(names[i], names[j]) == 0)
                return rle_fail(RLE_INVALID_ARGUMENT,
                                "worker \"%s\" is in the group twice", names[i]);
        if (strcmp(names[i], rle_rpc_name(comm->rpc)) == 0) *rank = i;
    }
    if (*rank < 0)
        return rle_fail(RLE_INVALID_ARGUMENT, "this worker, \"%s\", is not in the group",
                        rle_rpc_name(comm->rpc));
    return RLE_OK;
}

rle_status rle_comm_group_new(rle_comm *comm, const char *const *names, int count,
                              const char *tag, rle_comm_group **out)
{
    int rank;
    RLE_TRY(check_names(comm, names, count, &rank));
    if (strlen(tag) > RLE_NAME_MAX)
        return rle_fail(RLE_INVALID_ARGUMENT, "a group's name has at most %d bytes",
                        RLE_NAME_MAX);
    rle_comm_group *g = rle_calloc(1, sizeof *g + (size_t)count * sizeof *g->member);
    if (!g) return rle_oom(sizeof *g, "group");
    g->ops = &rle_comm_over_rpc;
    g->comm = comm;
    g->rank = rank;
    g->size = count;
    /* The same for the same set of names: ranks are compared with each call. */
    uint64_t all = 0;
    for (int i = 0; i < count; i++) all += rle_hash_name(names[i]);
    snprintf(g->id, sizeof g->id, "%016llx %s", (unsigned long long)all, tag);
    rle_status s = RLE_OK;
    rle_service_enter(comm->rpc);
    rle_slice id = {g->id, strlen(g->id)};
    if (find_group(comm, &id))
        s = rle_fail(RLE_ALREADY_EXISTS,
                     "there is a group \"%s\" of these workers already", tag);
    for (int i = 0; i < count && s == RLE_OK; i++) {
        g->member[i].peer = rle_service_peer(comm->rpc, names[i]);
        if (!g->member[i].peer) s = rle_oom(sizeof *g, "group");
    }
    if (s == RLE_OK) {
        g->next = comm->groups;
        comm->groups = g;
        take_early(g);
    }
    rle_service_leave(comm->rpc);
    if (s != RLE_OK) {
        rle_free(g);
        return s;
    }
    *out = g;
    return RLE_OK;
}

int rle_comm_group_rank(const rle_comm_group *g)
{
    return g->rank;
}

int rle_comm_group_size(const rle_comm_group *g)
{
    return g->size;
}

/* ---- the table ---- */

static rle_status begin(rle_comm_group *g, const rle_collective *c, rle_comm_task **out)
{
    rle_rpc *rpc = g->comm->rpc;
    rle_future *future;
    RLE_TRY(rle_future_new_local(rpc, c->title, c->site, &future));
    rle_service_enter(rpc);
    uint64_t number = g->begun + 1;
    rle_comm_round *round = rle_comm_round_find(g, number);
    rle_status s = RLE_OK;
    /* Whoever has not come to the first of them would refuse it. */
    if (number - (uint64_t)oldest_open(g, number) >= AHEAD_MAX)
        s = rle_fail(RLE_RESOURCE_EXHAUSTED,
                     "%s: %d collectives of the group are not finished; wait for some",
                     c->title, AHEAD_MAX);
    else if (!round)
        s = rle_comm_round_new(g, number, &round);
    if (s == RLE_OK) {
        g->begun = number;
        round->c = *c;
        round->future = future;
        rle_comm_round_enter(round);
        /* There may have been no memory for it when it failed, before we came to it. */
        if (round->code && !round->settled &&
            rle_service_timer(rpc, &g->comm->settle, rle_now()) != RLE_OK)
            rle_comm_settle(g->comm);
        *out = (rle_comm_task *)round;
    } else {
        rle_service_release(future);
    }
    rle_service_leave(rpc);
    return s;
}

/* A task is a round that was entered. */
static rle_comm_round *round_of(rle_comm_task *t)
{
    return (rle_comm_round *)t;
}

static rle_future *future_of(rle_comm_task *t)
{
    return round_of(t)->future;
}

static bool is_over(rle_comm_task *t)
{
    rle_rpc *rpc = round_of(t)->comm->rpc;
    rle_service_enter(rpc);
    bool over = round_of(t)->done;
    rle_service_leave(rpc);
    return over;
}

static bool is_idle(rle_comm_task *t)
{
    rle_rpc *rpc = round_of(t)->comm->rpc;
    rle_service_enter(rpc);
    bool idle = round_of(t)->done && !round_of(t)->lent;
    rle_service_leave(rpc);
    return idle;
}

static rle_status outcome(rle_comm_task *t)
{
    const rle_comm_round *round = round_of(t);
    return round->code ? rle_fail(round->code, "%s", round->why) : RLE_OK;
}

static void free_task(rle_comm_task *t)
{
    rle_rpc *rpc = round_of(t)->comm->rpc;
    rle_service_enter(rpc);
    rle_comm_round_free(round_of(t), false);
    rle_service_leave(rpc);
}

static void close_group(rle_comm_group *g)
{
    rle_comm *comm = g->comm;
    rle_service_enter(comm->rpc);
    for (rle_comm_round *round = g->rounds; round; round = round->next)
        rle_comm_round_fail(round, false, RLE_CANCELLED,
                            "%s: rank %d (worker \"%s\") has closed the group",
                            round->title, g->rank, rle_rpc_name(comm->rpc));
    rle_comm_settle(comm);
    free_group(g);
    rle_service_leave(comm->rpc);
}

const rle_comm_ops rle_comm_over_rpc = {
    .name = "rpc",
    .begin = begin,
    .future = future_of,
    .over = is_over,
    .idle = is_idle,
    .outcome = outcome,
    .free_task = free_task,
    .free_group = close_group,
};
