/* round.c - one collective of a group over remote calls: its parts, its end, its failure.
 * How it goes is told in comm_internal.h. All functions want the loop's lock held. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "comm/comm_internal.h"

enum { WINDOW = 3 }; /* parts on their way to one owner at a time */
/* An owner tells at the deadline who is missing; it gets so long to do it. */
#define GRACE (RLE_SECONDS / 4)
#define LOOK                                                                             \
    (5 * RLE_SECONDS) /* between two looks whether members are at odds, at the most */

static void next_calls(rle_comm_round *round, int owner);

typedef enum { PART_IDLE, PART_OPEN, PART_OVER } part_state;

typedef struct rle_comm_part {
    rle_comm_round *round;
    uint32_t number;
    part_state state;
    rle_future *f; /* our call to its owner, while it is open */
} rle_comm_part;

typedef struct rle_comm_lane {
    uint32_t next; /* the next part that may be this owner's */
    int open;
} rle_comm_lane;

/* ---- life ---- */

static void time_over(rle_timer *t);

rle_comm_round *rle_comm_round_find(const rle_comm_group *g, uint64_t number)
{
    rle_comm_round *round = g->rounds;
    while (round && round->number != number) round = round->next;
    return round;
}

rle_status rle_comm_round_new(rle_comm_group *g, uint64_t number, rle_comm_round **out)
{
    rle_comm_round *round = rle_calloc(1, sizeof *round);
    if (!round) return rle_oom(sizeof *round, "collective");
    round->group = g;
    round->number = number;
    round->comm = g->comm;
    round->first = round->first_gone = -1;
    round->timer.fire = time_over;
    round->next = g->rounds;
    g->rounds = round;
    *out = round;
    return RLE_OK;
}

static void unlink_round(rle_comm_round *round)
{
    rle_comm_round **at = &round->group->rounds;
    while (*at != round) at = &(*at)->next;
    *at = round->next;
}

static void drop_calls(rle_comm_round *round)
{
    for (uint32_t i = 0; round->part && i < round->parts; i++) {
        rle_future *f = round->part[i].f;
        round->part[i].f = NULL;
        round->part[i].state = PART_OVER;
        if (f) rle_service_drop(f);
    }
}

void rle_comm_round_stop(rle_comm_round *round)
{
    drop_calls(round);
    while (round->held) {
        rle_comm_held *h = round->held;
        round->held = h->next;
        rle_free(h);
    }
    rle_service_timer_off(round->comm->rpc, &round->timer);
}

void rle_comm_round_free(rle_comm_round *round, bool dying)
{
    if (!round->done) unlink_round(round);
    rle_comm_round_stop(round);
    if (round->future && !dying) rle_service_release(round->future);
    rle_free(round->part);
    rle_free(round->lane);
    rle_free(round);
}

/* Nothing of it is open any more. */
static void end(rle_comm_round *round)
{
    round->done = true;
    unlink_round(round);
    rle_service_timer_off(round->comm->rpc, &round->timer);
    if (round->future) rle_service_complete(round->future, round->code != RLE_OK);
}

/* ---- failing ---- */

void rle_comm_round_fail(rle_comm_round *round, bool told, rle_status code,
                         const char *fmt, ...)
{
    if (round->done || round->settled || round->code) return;
    rle_comm *comm = round->comm;
    va_list args;
    va_start(args, fmt);
    vsnprintf(round->why, sizeof round->why, fmt, args);
    va_end(args);
    round->code = code;
    round->told = told;
    /* Without memory for the timer the round's own does it. */
    rle_service_timer(comm->rpc, &comm->settle, rle_now());
}

static const char *worker_of(const rle_comm_round *round, int rank)
{
    return rle_peer_name(round->group->member[rank].peer);
}

static void tell_others(rle_comm_round *round)
{
    const rle_comm_group *g = round->group;
    for (int r = 0; r < g->size; r++) {
        const rle_comm_member *m = &g->member[r];
        if (r == g->rank || m->closed || !rle_service_connected(m->peer)) continue;
        rle_future *f;
        if (rle_comm_send(round, r, -1, NULL, 0, NULL, NULL, &f) == RLE_OK)
            rle_service_release(f);
    }
}

static void settle(rle_comm_round *round)
{
    rle_comm_group *g = round->group;
    round->settled = true;
    if (!round->told) tell_others(round);
    while (round->held) {
        rle_comm_held *h = round->held;
        round->held = h->next;
        rle_service_fail(h->in, round->code, round->why);
        rle_free(h);
    }
    drop_calls(round);
    g->failed = round->number;
    g->failed_code = round->code;
    memcpy(g->failed_why, round->why, sizeof g->failed_why);
    rle_service_timer_off(g->comm->rpc, &round->timer);
    if (round->entered) end(round); /* else it stays until this rank comes to it */
}

static rle_comm_round *unsettled(const rle_comm *comm)
{
    for (const rle_comm_group *g = comm->groups; g; g = g->next)
        for (rle_comm_round *round = g->rounds; round; round = round->next)
            if (round->code && !round->settled) return round;
    return NULL;
}

void rle_comm_settle(rle_comm *comm)
{
    rle_comm_round *round;
    while ((round = unsettled(comm)) != NULL) settle(round);
    for (rle_comm_group *g = comm->groups; g; g = g->next) {
        rle_comm_announce_all(g);
        for (round = g->rounds; round; round = round->next) {
            if (!round->again || round->code) continue;
            round->again = false;
            for (int r = 0; r < g->size; r++)
                if (r != g->rank) next_calls(round, r);
        }
    }
}

/* Has rank r called us for this part? -1: for any. */
static bool has_called(const rle_comm_round *round, int r, int64_t part)
{
    const rle_comm_held *h = round->held;
    while (h && !(h->rank == r && (part < 0 || h->part == part))) h = h->next;
    return h != NULL;
}

/* Does it still wait for something of that rank? */
static bool needs(const rle_comm_round *round, int rank)
{
    for (uint32_t i = 0; i < round->parts; i++) {
        if (round->part[i].state == PART_OVER) continue;
        rle_comm_piece p = rle_comm_piece_of(round, i);
        if (p.owner == rank) return true;
        if (p.owner != round->group->rank) continue;
        const rle_comm_held *h = round->held;
        while (h && !(h->rank == rank && h->part == i)) h = h->next;
        if (!h) return true;
    }
    return false;
}

bool rle_comm_round_gone(rle_comm_round *round, int rank)
{
    const rle_comm_member *m = &round->group->member[rank];
    /* That its calls failed with it was noticed before the reason was known. */
    bool noticed = round->code == RLE_UNAVAILABLE && !round->told && !round->settled &&
                   round->first_gone == rank;
    if (noticed) round->code = RLE_OK;
    if (!noticed && (round->code || !round->entered || !needs(round, rank))) return false;
    if (m->goodbye)
        rle_comm_round_fail(round, false, RLE_UNAVAILABLE,
                            "%s: rank %d (worker \"%s\") has left", round->title, rank,
                            worker_of(round, rank));
    else
        rle_comm_round_fail(round, false, RLE_UNAVAILABLE,
                            "%s: rank %d (worker \"%s\") was lost: %s", round->title,
                            rank, worker_of(round, rank), m->why);
    return true;
}

/* Whose connection broke between two collectives may have failed the last one without us,
 * or us without them. Both of its ends let the next one fail: then they are together
 * again. */
static void take_losses(rle_comm_round *round)
{
    rle_comm_group *g = round->group;
    for (int r = 0; r < g->size; r++) {
        rle_comm_member *m = &g->member[r];
        if (!m->gone) continue;
        bool back = rle_service_connected(m->peer);
        if (!back || m->owed) rle_comm_round_gone(round, r);
        m->owed = false;
        if (back) m->gone = false;
    }
}

void rle_comm_round_passed(rle_comm_round *round, int rank)
{
    const rle_comm_group *g = round->group;
    for (uint32_t i = 0; round->entered && i < round->parts && !round->code; i++)
        if (round->part[i].state != PART_OVER &&
            rle_comm_piece_of(round, i).owner == g->rank && !has_called(round, rank, i))
            rle_comm_round_fail(
                round, false, RLE_UNAVAILABLE,
                "%s: rank %d (worker \"%s\") gave it up, and is at collective %llu",
                round->title, rank, worker_of(round, rank),
                (unsigned long long)g->member[rank].oldest);
}

void rle_comm_round_forget(rle_comm_round *round, const rle_comm_held *held)
{
    if (round->code) return;
    round->first_gone = held->rank;
    rle_comm_round_fail(round, false, RLE_UNAVAILABLE,
                        "%s: rank %d (worker \"%s\") gave it up", round->title,
                        held->rank, worker_of(round, held->rank));
}

/* ---- time ---- */

static void arm_timer(rle_comm_round *round)
{
    int64_t at = round->look && round->look < round->wake ? round->look : round->wake;
    if (rle_service_timer(round->comm->rpc, &round->timer, at) != RLE_OK)
        rle_comm_round_fail(round, false, RLE_RESOURCE_EXHAUSTED, "%s: out of memory",
                            round->title);
}

static void set_timer(rle_comm_round *round, int64_t at, double timeout)
{
    if (round->wake && round->wake <= at) return;
    round->wake = at;
    round->timeout = timeout;
    arm_timer(round);
}

static int64_t next_look(const rle_comm_round *round, int64_t now)
{
    int64_t pause = round->c.timeout / 4;
    return now + (pause < LOOK ? pause : LOOK);
}

/* Now and then: has somebody made another group? Until that is known. */
static void look_for_odds(rle_comm_round *round)
{
    round->look = rle_comm_odds(round->group) ? 0 : next_look(round, rle_now());
    if (!round->code && !round->done) arm_timer(round);
}

/* Who is missing, as far as this rank can see. */
static int list_silent(const rle_comm_round *round, bool *silent)
{
    const rle_comm_group *g = round->group;
    int n = 0;
    memset(silent, 0, (size_t)g->size);
    if (!round->entered)
        for (int r = 0; r < g->size; r++)
            n += silent[r] = r == g->rank || !has_called(round, r, -1);
    for (uint32_t i = 0; i < round->parts && !n; i++)
        if (round->part[i].state != PART_OVER &&
            rle_comm_piece_of(round, i).owner == g->rank)
            for (int r = 0; r < g->size; r++)
                n += silent[r] = r != g->rank && !has_called(round, r, i);
    if (n) return n;
    for (uint32_t i = 0; i < round->parts; i++)
        if (round->part[i].state == PART_OPEN) {
            int owner = rle_comm_piece_of(round, i).owner;
            n += !silent[owner];
            silent[owner] = true;
        }
    return n;
}

static void time_over(rle_timer *t)
{
    rle_comm_round *round =
        (rle_comm_round *)((char *)t - offsetof(rle_comm_round, timer));
    rle_comm_group *g = round->group;
    if (round->look && rle_now() < round->wake) {
        look_for_odds(round);
        return;
    }
    round->wake = 0;
    const char *odds = rle_comm_odds(g);
    if (odds) {
        rle_comm_round_fail(round, false, RLE_DEADLINE_EXCEEDED,
                            "%s not finished after %g s: %s", round->title,
                            round->timeout, odds);
        rle_comm_settle(g->comm);
        return;
    }
    bool silent[RLE_COMM_MAX_RANKS];
    int n = list_silent(round, silent), told = 0;
    char who[160] = "";
    size_t at = 0;
    for (int r = 0; r < g->size && told < 8; r++) {
        if (!silent[r]) continue;
        at += (size_t)snprintf(who + at, sizeof who - at, "%s%d", told++ ? ", " : "", r);
    }
    rle_comm_round_fail(round, false, RLE_DEADLINE_EXCEEDED,
                        "%s not finished after %g s%s%s%s%s", round->title,
                        round->timeout, n ? (n > 1 ? " (ranks " : " (rank ") : "", who,
                        n > told ? ", ..." : "", n ? " silent?)" : "");
    rle_comm_settle(g->comm);
}

/* ---- going on ---- */

static void part_over(rle_comm_round *round, rle_comm_part *part)
{
    part->state = PART_OVER;
    if (--round->left == 0 && !round->code) end(round);
}

/* What the owner says of a call that failed. */
static void call_failed(rle_comm_round *round, int owner, rle_future *f)
{
    rle_msg *m = rle_future_message(f);
    rle_wire_error e;
    if (!m || rle_error_decode(m, &e) != RLE_OK)
        rle_comm_round_fail(round, false, RLE_RESOURCE_EXHAUSTED, "%s: out of memory",
                            round->title);
    else if (e.outcome == RLE_OUTCOME_NONE)
        /* Who had no room for it could not remember it either. */
        rle_comm_round_fail(round, e.code != RLE_RESOURCE_EXHAUSTED, e.code, "%.*s",
                            (int)e.message.n, e.message.p);
    else {
        round->first_gone = owner;
        rle_comm_round_fail(round, false, e.code, "%s: rank %d: %.*s", round->title,
                            owner, (int)e.message.n, e.message.p);
    }
}

/* Its owner has not joined so far. It may: the time of the collective is another one. */
static bool not_there_yet(rle_future *f)
{
    rle_msg *m = rle_future_message(f);
    rle_wire_error e;
    return m && rle_error_decode(m, &e) == RLE_OK && e.code == RLE_NOT_FOUND &&
           e.outcome == RLE_OUTCOME_NOT_EXECUTED;
}

static void call_over(rle_future *f, void *self)
{
    rle_comm_part *part = self;
    rle_comm_round *round = part->round;
    rle_comm_piece p = rle_comm_piece_of(round, part->number);
    bool good = rle_service_status(f) == RLE_FUTURE_DONE;
    if (part->f) rle_service_release(part->f);
    part->f = NULL;
    part->state = PART_OVER; /* for rle_service_call, which may not have returned */
    if (round->code || round->done) return;
    if (!good && not_there_yet(f)) {
        rle_comm_lane *lane = &round->lane[p.owner];
        part->state = PART_IDLE;
        lane->open--;
        if (part->number < lane->next) lane->next = part->number;
        round->again = true;
        rle_service_timer(round->comm->rpc, &round->comm->settle, rle_now());
        return;
    }
    if (!good) {
        call_failed(round, p.owner, f);
        return;
    }
    rle_status s = rle_comm_take_answer(round, &p, f);
    if (s != RLE_OK) {
        rle_comm_round_fail(round, false, s, "%s: rank %d: %s", round->title, p.owner,
                            rle_message());
        return;
    }
    round->lane[p.owner].open--;
    next_calls(round, p.owner);
    part_over(round, part);
}

/* Call the owner of the parts that are due. */
static void next_calls(rle_comm_round *round, int owner)
{
    rle_comm_lane *lane = &round->lane[owner];
    while (lane->open < WINDOW && lane->next < round->parts && !round->code) {
        rle_comm_part *part = &round->part[lane->next++];
        rle_comm_piece p = rle_comm_piece_of(round, part->number);
        if (p.owner != owner || part->state != PART_IDLE) continue;
        lane->open++;
        part->state = PART_OPEN;
        rle_future *f;
        rle_status s = rle_comm_send(round, owner, part->number, round->c.input + p.put,
                                     p.put_size, call_over, part, &f);
        if (s != RLE_OK) {
            rle_comm_round_fail(round, false, s, "%s: %s", round->title, rle_message());
            part->state = PART_IDLE;
        } else if (part->state == PART_OPEN) {
            part->f = f;
        } else {
            rle_service_release(f);
        }
    }
}

/* ---- parts of our own ---- */

/* Answer every call for this part. */
static void answer(rle_comm_round *round, uint32_t part, const rle_comm_piece *p)
{
    const uint8_t *data = round->c.own ? round->c.own + rle_comm_own_at(round, part)
                                       : round->c.data + p->get;
    rle_encoder *e = rle_comm_answer(round->comm, round, data, p->get_size);
    for (rle_comm_held **at = &round->held; *at;) {
        rle_comm_held *h = *at;
        if (h->part != part) {
            at = &h->next;
            continue;
        }
        *at = h->next;
        rle_incoming *in = h->in;
        rle_free(h);
        /* A connection that breaks here fails other calls, but they wait for settle. */
        rle_service_reply(in, e);
        at = &round->held;
    }
}

/* All calls for a part of ours are there? Then it is combined and answered. */
static void check_part(rle_comm_round *round, uint32_t number)
{
    const rle_comm_group *g = round->group;
    rle_comm_part *part = &round->part[number];
    rle_comm_piece p = rle_comm_piece_of(round, number);
    if (p.owner != g->rank || part->state == PART_OVER || round->code) return;
    int there = 0;
    for (const rle_comm_held *h = round->held; h; h = h->next) there += h->part == number;
    if (there < g->size - 1) return;
    const uint8_t *in[RLE_COMM_MAX_RANKS];
    in[g->rank] = round->c.input + p.put;
    for (const rle_comm_held *h = round->held; h; h = h->next) {
        if (h->part != number) continue;
        rle_comm_message m;
        rle_status s = rle_comm_read(h->in, &m);
        if (s != RLE_OK || m.size != p.put_size) {
            rle_comm_round_fail(round, false, RLE_INTERNAL,
                                "%s: rank %d has sent %zu bytes in place of %zu",
                                round->title, h->rank, m.size, p.put_size);
            return;
        }
        in[h->rank] = m.data;
        if (!rle_comm_fits(round, h, p.get_size)) return;
    }
    bool gathers = round->c.kind == RLE_COMM_ALL_GATHER;
    if (!gathers && p.put_size) {
        uint8_t *data = round->c.data + p.put, *own = round->c.own;
        if (own) own += rle_comm_own_at(round, number);
        if (round->dropped) data = own, own = NULL;
        if (data)
            rle_comm_combine(round->c.op, round->c.dtype, in, g->size, p.put_size, data,
                             own);
    }
    for (int r = 0; gathers && p.put_size && r < g->size; r++)
        if (r != g->rank)
            memcpy(round->c.data + (size_t)r * round->c.size, in[r], p.put_size);
    answer(round, number, &p);
    part_over(round, part);
}

/* ---- coming to it, calls for it ---- */

static rle_status make_parts(rle_comm_round *round)
{
    const rle_comm_group *g = round->group;
    uint32_t n = rle_comm_count_parts(&round->c, g->size);
    round->part = rle_calloc(n, sizeof *round->part);
    round->lane = rle_calloc((size_t)g->size, sizeof *round->lane);
    if (!round->part || !round->lane)
        return rle_oom(n * sizeof *round->part, "collective");
    round->parts = round->left = n;
    for (uint32_t i = 0; i < n; i++)
        round->part[i] = (rle_comm_part){.round = round, .number = i};
    return RLE_OK;
}

void rle_comm_round_enter(rle_comm_round *round)
{
    const rle_comm_group *g = round->group;
    round->entered = true;
    rle_comm_round_compare(round, g->rank, round->c.title, strlen(round->c.title),
                           round->c.spec, strlen(round->c.spec));
    if (round->settled) {
        end(round);
        return;
    }
    if (!round->code && make_parts(round) != RLE_OK)
        rle_comm_round_fail(round, false, RLE_RESOURCE_EXHAUSTED, "%s: %s", round->title,
                            rle_message());
    if (round->code) return;
    round->deadline = rle_now() + round->c.timeout;
    bool waited = round->wake; /* others were here before */
    if (g->id[0] == '#')
        round->look = next_look(round, round->deadline - round->c.timeout);
    set_timer(round, round->deadline + GRACE, (double)round->c.timeout / RLE_SECONDS);
    if (waited && round->look) arm_timer(round);
    if (g->spoilt) rle_comm_round_fail(round, false, g->spoilt, "%s", g->spoilt_why);
    rle_comm_round_closed(round);
    take_losses(round);
    for (int r = 0; r < g->size; r++)
        if (round->number < g->member[r].oldest) rle_comm_round_passed(round, r);
    for (int r = 0; r < g->size; r++)
        if (r != g->rank) next_calls(round, r);
    /* The last part of all ends it, and with it `part`. */
    uint32_t parts = round->parts;
    for (uint32_t i = 0; i < parts && !round->done; i++) check_part(round, i);
}

void rle_comm_round_call(rle_comm_round *round, rle_incoming *in,
                         const rle_comm_message *m, int64_t deadline)
{
    if (m->part < 0) {
        if (!round->title[0]) /* for what is said when this rank comes to it */
            snprintf(round->title, sizeof round->title, "%.*s", (int)m->title.n,
                     m->title.p);
        rle_comm_round_fail(round, true, m->code, "%.*s", (int)m->spec.n, m->spec.p);
        rle_service_reply(in, rle_comm_answer(round->comm, NULL, NULL, 0));
        return;
    }
    if (!round->code)
        rle_comm_round_compare(round, m->rank, m->title.p, m->title.n, m->spec.p,
                               m->spec.n);
    if (round->settled) {
        rle_service_fail(in, round->code, round->why);
        return;
    }
    if (has_called(round, m->rank, m->part) ||
        (round->entered && m->part >= round->parts)) {
        rle_service_fail(in, RLE_INVALID_ARGUMENT,
                         "a part of a collective was sent twice");
        return;
    }
    rle_comm_held *h = rle_malloc(sizeof *h);
    if (!h) {
        rle_comm_round_fail(round, false, RLE_RESOURCE_EXHAUSTED,
                            "%s: out of memory at rank %d", round->title,
                            round->group->rank);
        rle_service_fail(in, RLE_RESOURCE_EXHAUSTED, round->why);
        return;
    }
    *h = (rle_comm_held){.next = round->held,
                         .in = in,
                         .rank = m->rank,
                         .part = m->part,
                         .deadline = deadline,
                         .timeout = m->timeout};
    round->held = h;
    if (deadline) set_timer(round, deadline, m->timeout);
    if (round->entered && !round->code) check_part(round, (uint32_t)m->part);
}
