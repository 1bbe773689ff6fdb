/* comm_rpc.c - groups whose bytes move over the remote calls of their workers: the
 * messages, and where they belong. How it goes is told in comm_internal.h. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "comm/comm_internal.h"

/* ---- calls that arrive ---- */

rle_comm_group *rle_comm_find_group(const rle_comm *comm, const rle_slice *id)
{
    rle_comm_group *g = comm->groups;
    while (g && !(strlen(g->id) == id->n && memcmp(g->id, id->p, id->n) == 0))
        g = g->next;
    return g;
}

void rle_comm_refuse(rle_incoming *in, rle_status code, const char *fmt, ...)
{
    char message[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    rle_service_fail(in, code, message);
}

int rle_comm_rank_of(const rle_comm_group *g, const rle_peer *peer)
{
    int r = 0;
    while (r < g->size && g->member[r].peer != peer) r++;
    return r < g->size ? r : -1;
}

/* Of a life of its group that is over at its caller. */
static bool is_stale(const rle_comm_member *member, const rle_comm_message *m)
{
    return m->life < member->life || (member->closed && m->life == member->life);
}

/* Neither of us has done anything in that life: the next one may be in its place. */
static bool is_unused(const rle_comm_group *g, const rle_comm_member *member)
{
    return member->closed && !member->closed_after && !g->begun;
}

bool rle_comm_is_early(const rle_comm_group *g, int rank, const rle_comm_message *m)
{
    const rle_comm_member *member = &g->member[rank];
    if (m->part == RLE_COMM_MADE && is_unused(g, member)) return false;
    if (member->life || member->closed) return m->life > member->life;
    return m->part >= RLE_COMM_FAILED;
}

void rle_comm_group_note(rle_comm_group *g, int rank, const rle_comm_message *m)
{
    rle_comm_member *member = &g->member[rank];
    if (m->part == RLE_COMM_REFUSED) {
        rle_comm_group_spoil(g, m->code, m->spec.p, m->spec.n);
        return;
    }
    if (m->part == RLE_COMM_ODDS) {
        if (m->number <= g->size)
            rle_comm_note_odds(g, (int)m->number - 1, m->spec.p, m->spec.n);
        return;
    }
    if (m->part == RLE_COMM_VOID) {
        if (m->life == member->life && !member->closed) member->life = 0;
        return;
    }
    if (m->part == RLE_COMM_MADE) {
        member->life = m->life;
        member->closed = false;
        rle_comm_compare(g, rank, m);
        return;
    }
    if (m->life != member->life) return; /* of one that we have refused */
    member->closed = true;
    member->closed_after = (uint64_t)m->number - 1;
    if (member->announced) rle_comm_tell(g, rank, RLE_COMM_VOID, 1, RLE_OK, "");
    member->announced = false;
    for (rle_comm_round *round = g->rounds; round; round = round->next)
        rle_comm_round_closed(round);
}

void rle_comm_group_call(rle_comm_group *g, rle_incoming *in, const rle_comm_message *m,
                         int64_t deadline)
{
    const char *here = rle_rpc_name(g->comm->rpc);
    uint64_t number = (uint64_t)m->number;
    rle_peer *caller = rle_service_caller(in);
    int rank = rle_comm_rank_of(g, caller);
    if (m->part == RLE_COMM_VOID) rle_comm_early_void(g->comm, caller, m);
    if (rank < 0 || rle_comm_is_early(g, rank, m)) {
        rle_comm_early_keep(g->comm, in, m, deadline);
        return;
    }
    bool stale = is_stale(&g->member[rank], m);
    if (m->part < RLE_COMM_FAILED) {
        uint64_t before = g->member[rank].life;
        if (!stale) rle_comm_group_note(g, rank, m);
        rle_service_reply(in, rle_comm_answer(g->comm, NULL, NULL, 0));
        if (g->member[rank].life == before) return;
        rle_comm_early_take(g);
        rle_comm_announce_all(g);
        return;
    }
    if (stale || m->rank != rank) {
        rle_comm_refuse(
            in, RLE_CANCELLED, "%.*s: rank %d (worker \"%s\") has closed the group",
            (int)m->title.n, m->title.p, rank, rle_peer_name(g->member[rank].peer));
        return;
    }
    rle_comm_member *member = &g->member[m->rank];
    rle_comm_round *round = rle_comm_round_find(g, number);
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
            rle_comm_refuse(
                in, RLE_UNAVAILABLE,
                "%.*s: rank %d (worker \"%s\") gave it up, and is at collective %llu",
                (int)m->title.n, m->title.p, g->rank, here, (unsigned long long)g->begun);
        return;
    }
    if (!round && number > g->begun + RLE_COMM_AHEAD_MAX) {
        rle_comm_refuse(in, RLE_RESOURCE_EXHAUSTED,
                        "%.*s: \"%s\" is %llu collectives behind", (int)m->title.n,
                        m->title.p, here, (unsigned long long)(number - g->begun));
        return;
    }
    if (!round && rle_comm_round_new(g, number, &round) != RLE_OK) {
        rle_comm_refuse(in, RLE_RESOURCE_EXHAUSTED, "%.*s: rank %d: %s", (int)m->title.n,
                        m->title.p, g->rank, rle_message());
        return;
    }
    rle_comm_round_call(round, in, m, deadline);
    rle_comm_round_closed(round);
}

/* ---- the service ---- */

static void arrived(rle_service *s, rle_incoming *in, const rle_incoming_info *info)
{
    (void)info;
    rle_comm *comm = (rle_comm *)s;
    rle_comm_message m;
    if (rle_comm_read(in, &m) != RLE_OK) {
        rle_service_fail(in, RLE_INVALID_ARGUMENT, rle_message());
        return;
    }
    rle_comm_group *g = rle_comm_find_group(comm, &m.group);
    if (!g && m.part == RLE_COMM_VOID) {
        rle_comm_early_void(comm, rle_service_caller(in), &m);
        rle_service_reply(in, rle_comm_answer(comm, NULL, NULL, 0));
        return;
    }
    int64_t deadline = rle_now() + (int64_t)(m.left * RLE_SECONDS);
    if (g)
        rle_comm_group_call(g, in, &m, deadline);
    else
        rle_comm_early_keep(comm, in, &m, deadline);
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
    if (rle_comm_early_forget(comm, in)) return;
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
    rle_comm_early_gone(comm, peer);
    for (rle_comm_group *g = comm->groups; g; g = g->next)
        for (int r = 0; r < g->size; r++) {
            rle_comm_member *m = &g->member[r];
            if (m->peer != peer) continue;
            m->gone = m->owed = true;
            m->announced = false;
            m->life = 0;
            m->goodbye = goodbye;
            snprintf(m->why, sizeof m->why, "%s", reason);
            for (rle_comm_round *round = g->rounds; round; round = round->next)
                if (rle_comm_round_gone(round, r)) m->owed = false;
        }
}

static void worker_joined(rle_service *s, rle_peer *peer)
{
    rle_comm *comm = (rle_comm *)s;
    for (rle_comm_group *g = comm->groups; g; g = g->next)
        if (rle_comm_rank_of(g, peer) >= 0) rle_comm_announce_all(g);
}

static void settle_now(rle_timer *t)
{
    rle_comm_settle((rle_comm *)((char *)t - offsetof(rle_comm, settle)));
}

/* Of one that is in no list. */
static void forget_members(rle_comm_group *g)
{
    for (int r = 0; r < g->size; r++) rle_service_peer_release(g->member[r].peer);
    rle_free(g);
}

static void free_group(rle_comm_group *g)
{
    rle_comm *comm = g->comm;
    rle_comm_announce_stop(g);
    /* Those that are left were never entered, or their works are closed. */
    while (g->rounds) rle_comm_round_free(g->rounds, false);
    rle_comm_group **at = &comm->groups;
    while (*at != g) at = &(*at)->next;
    *at = g->next;
    forget_members(g);
}

static void closed(rle_service *s)
{
    rle_comm *comm = (rle_comm *)s;
    rle_service_timer_off(comm->rpc, &comm->settle);
    for (rle_comm_group *g = comm->groups; g; g = g->next) {
        rle_comm_announce_stop(g);
        for (rle_comm_round *round = g->rounds; round; round = round->next)
            rle_comm_round_stop(round);
    }
    if (comm->close_works) comm->close_works(comm);
    while (comm->groups) free_group(comm->groups);
    rle_comm_early_close(comm);
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
                                  .joined = worker_joined,
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

/* Where a group is found. One with a name by that: whoever is in it has one of it at a
 * time. One without, whose tag is a number behind '#', by the set of its workers. */
static void make_id(rle_comm_group *g, const char *const *names, const char *tag)
{
    uint64_t all = 0;
    for (int i = 0; i < g->size; i++) all += rle_hash_name(names[i]);
    if (tag[0] == '#')
        snprintf(g->id, sizeof g->id, "%s %016llx", tag, (unsigned long long)all);
    else
        snprintf(g->id, sizeof g->id, "%s", tag);
}

/* With those who have made it before. Who could not is told that nothing comes of it. */
static rle_status agree(rle_comm_group *g)
{
    rle_comm_early_take(g);
    if (!g->spoilt) {
        rle_comm_announce_all(g);
        return RLE_OK;
    }
    for (int r = 0; r < g->size; r++)
        rle_comm_tell(g, r, RLE_COMM_REFUSED, 1, g->spoilt, g->spoilt_why);
    rle_status code = rle_fail(g->spoilt, "%s", g->spoilt_why);
    free_group(g);
    return code;
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
    make_id(g, names, tag);
    rle_status s = RLE_OK;
    rle_service_enter(comm->rpc);
    rle_slice id = {g->id, strlen(g->id)};
    if (rle_comm_find_group(comm, &id))
        s = rle_fail(RLE_ALREADY_EXISTS,
                     "this worker is in a group \"%s\" already; close that one, or give "
                     "this one another name",
                     tag);
    for (int i = 0; i < count && s == RLE_OK; i++) {
        g->member[i].peer = rle_service_peer(comm->rpc, names[i]);
        if (!g->member[i].peer) s = rle_oom(sizeof *g, "group");
    }
    if (s == RLE_OK) {
        g->life = ++comm->lives;
        g->next = comm->groups;
        comm->groups = g;
        s = agree(g);
    } else {
        forget_members(g);
    }
    rle_service_leave(comm->rpc);
    if (s == RLE_OK) *out = g;
    return s;
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
    if (number - (uint64_t)rle_comm_oldest_open(g, number) >= RLE_COMM_AHEAD_MAX)
        s = rle_fail(RLE_RESOURCE_EXHAUSTED,
                     "%s: %d collectives of the group are not finished; wait for some",
                     c->title, RLE_COMM_AHEAD_MAX);
    else if (!round)
        s = rle_comm_round_new(g, number, &round);
    if (s == RLE_OK) {
        g->begun = number;
        round->c = *c;
        if (!c->input) round->c.input = c->data;
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

static void let_go(rle_comm_task *t)
{
    rle_rpc *rpc = round_of(t)->comm->rpc;
    rle_service_enter(rpc);
    round_of(t)->dropped = true;
    rle_service_leave(rpc);
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
    rle_comm_member *own = &g->member[g->rank];
    own->closed = true;
    own->closed_after = g->begun;
    for (rle_comm_round *round = g->rounds; round; round = round->next)
        if (round->entered)
            rle_comm_round_fail(round, false, RLE_CANCELLED,
                                "%s: rank %d (worker \"%s\") has closed the group",
                                round->title, g->rank, rle_rpc_name(comm->rpc));
        else
            rle_comm_round_closed(round);
    rle_comm_settle(comm);
    for (int r = 0; r < g->size; r++)
        if (!g->member[r].closed)
            rle_comm_tell(g, r, RLE_COMM_CLOSED, g->begun + 1, RLE_OK, "");
    free_group(g);
    rle_service_leave(comm->rpc);
}

const rle_comm_ops rle_comm_over_rpc = {
    .name = "rpc",
    .apart = rle_comm_lies_apart,
    .own_size = rle_comm_own_size,
    .begin = begin,
    .future = future_of,
    .over = is_over,
    .idle = is_idle,
    .outcome = outcome,
    .let_go = let_go,
    .free_task = free_task,
    .free_group = close_group,
};
