/* agree.c - whether all ranks mean the same group, are still in it, and call the same.
 *
 * Whoever makes a group tells the others of whom it is, when they are connected; so each
 * of two hears of the other, or finds what it has told. If they do not give the same
 * names in the same order, nothing can come of it, and might look like waiting: two who
 * are both rank 0 wait for each other. Who makes it last is refused, and tells the
 * others; where it is made already, every collective fails at once.
 *
 * A group without a name is found by who is in it. Who means it of others makes another
 * group, which is no mistake in itself: the one here may still come. So collectives go on
 * waiting, but who waits for a worker that has told of another group with us in it says
 * so in the log, and at the end of the time in place of "silent?". */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "comm/comm_internal.h"

enum { HASH = 17, NAMES_SHOWN = 120 };

/* A hash of the names in their order, and as many of them as there is room for. */
static void describe(const rle_comm_group *g, char out[HASH + NAMES_SHOWN])
{
    uint64_t all = 0;
    for (int r = 0; r < g->size; r++)
        all = all * 31 + rle_hash_name(rle_peer_name(g->member[r].peer));
    size_t at = (size_t)snprintf(out, HASH + 1, "%016" PRIx64 " ", all);
    for (int r = 0; r < g->size; r++) {
        const char *name = rle_peer_name(g->member[r].peer);
        bool fits = at + strlen(name) + 8 < HASH + NAMES_SHOWN;
        at += (size_t)snprintf(out + at, HASH + NAMES_SHOWN - at, "%s%s", r ? ", " : "",
                               fits ? name : "...");
        if (!fits) break;
    }
}

/* That we have made a group, on its way to a rank. */
typedef struct rle_comm_news {
    rle_comm_group *group;
    int rank;
    bool over;
    rle_future *f;
} rle_comm_news;

/* Without memory over there it is told again, a moment later. */
static void news_over(rle_future *f, void *self)
{
    enum { MOMENT = 5000000 }; /* nanoseconds */
    rle_comm_news *news = self;
    rle_comm_group *g = news->group;
    rle_comm_member *m = &g->member[news->rank];
    news->over = true;
    m->news = NULL;
    if (rle_service_status(f) != RLE_FUTURE_DONE) {
        m->announced = false;
        rle_service_timer(g->comm->rpc, &g->comm->settle, rle_now() + MOMENT);
    }
    if (!news->f) return; /* rle_service_call has not returned */
    rle_service_release(news->f);
    rle_free(news);
}

rle_status rle_comm_announce(rle_comm_group *g, int rank)
{
    char spec[HASH + NAMES_SHOWN];
    rle_comm_member *m = &g->member[rank];
    if (m->announced || m->closed || rank == g->rank || !rle_service_connected(m->peer))
        return RLE_OK;
    rle_comm_news *news = rle_malloc(sizeof *news);
    if (!news) return rle_oom(sizeof *news, "group");
    *news = (rle_comm_news){.group = g, .rank = rank};
    describe(g, spec);
    m->announced = true;
    rle_future *f;
    rle_status s = rle_comm_tell_and_hear(g, rank, RLE_COMM_MADE, (uint64_t)g->size,
                                          RLE_OK, spec, news_over, news, &f);
    if (s == RLE_OK && !news->over) {
        news->f = f;
        m->news = news;
        return RLE_OK;
    }
    if (s == RLE_OK)
        rle_service_release(f);
    else
        m->announced = false;
    rle_free(news);
    return s;
}

void rle_comm_announce_all(rle_comm_group *g)
{
    for (int r = 0; r < g->size; r++)
        if (rle_comm_announce(g, r) != RLE_OK) {
            rle_service_timer(g->comm->rpc, &g->comm->settle,
                              rle_now() + RLE_SECONDS / 100);
            return;
        }
}

void rle_comm_announce_stop(rle_comm_group *g)
{
    for (int r = 0; r < g->size; r++) {
        rle_comm_news *news = g->member[r].news;
        if (!news) continue;
        rle_service_drop(news->f);
        rle_free(news);
        g->member[r].news = NULL;
    }
}

void rle_comm_group_spoil(rle_comm_group *g, rle_status code, const char *why, size_t n)
{
    if (g->spoilt) return;
    g->spoilt = code;
    snprintf(g->spoilt_why, sizeof g->spoilt_why, "%.*s", (int)n, why);
    for (rle_comm_round *round = g->rounds; round; round = round->next)
        if (round->entered) rle_comm_round_fail(round, false, code, "%s", g->spoilt_why);
}

typedef struct side {
    const char *worker, *names;
    int names_n, rank;
    int64_t size;
} side;

/* The same words at both. */
static void spoil_by(rle_comm_group *g, side a, side b)
{
    char title[RLE_NAME_MAX + 16] = "the group", why[sizeof g->spoilt_why];
    static const char what_to_do[] = "give the same names in the same order everywhere";
    if (g->id[0] != '#') snprintf(title, sizeof title, "group \"%.64s\"", g->id);
    if (a.rank > b.rank || (a.rank == b.rank && strcmp(a.worker, b.worker) > 0)) {
        side was = a;
        a = b;
        b = was;
    }
    if (a.rank == b.rank)
        snprintf(
            why, sizeof why,
            "%s: worker \"%s\", for which it is %.*s, and worker \"%s\", for which it "
            "is %.*s, are both rank %d; %s",
            title, a.worker, a.names_n, a.names, b.worker, b.names_n, b.names, a.rank,
            what_to_do);
    else
        snprintf(
            why, sizeof why,
            "%s has %lld workers for \"%s\" (%.*s), and %lld for \"%s\" (%.*s)%s; %s",
            title, (long long)a.size, a.worker, a.names_n, a.names, (long long)b.size,
            b.worker, b.names_n, b.names,
            a.size == b.size ? ", which are not the same" : "", what_to_do);
    rle_comm_group_spoil(g, RLE_INVALID_ARGUMENT, why, strlen(why));
}

void rle_comm_compare(rle_comm_group *g, int rank, const rle_comm_message *m)
{
    char own[HASH + NAMES_SHOWN];
    describe(g, own);
    bool same = m->spec.n > HASH && m->number == g->size && m->rank == rank &&
                memcmp(own, m->spec.p, HASH) == 0;
    if (same && !g->spoilt) return;
    if (!same && m->spec.n > HASH)
        spoil_by(g,
                 (side){rle_rpc_name(g->comm->rpc), own + HASH, (int)strlen(own + HASH),
                        g->rank, g->size},
                 (side){rle_peer_name(g->member[rank].peer), m->spec.p + HASH,
                        (int)m->spec.n - HASH, m->rank, m->number});
    rle_comm_tell(g, rank, RLE_COMM_REFUSED, 1, g->spoilt ? g->spoilt : RLE_INTERNAL,
                  g->spoilt_why);
}

void rle_comm_note_odds(rle_comm_group *g, int rank, const char *words, size_t n)
{
    if (g->odds[0] || g->member[rank].life) return;
    g->odds_rank = rank;
    snprintf(g->odds, sizeof g->odds, "%.*s", (int)n, words);
    rle_log(RLE_LOG_WARN, "a collective waits: %s", g->odds);
}

static void find_odds(rle_comm_group *g)
{
    char own[HASH + NAMES_SHOWN], words[sizeof g->odds];
    const rle_comm_message *other = NULL;
    int at = 0;
    for (; at < g->size; at++) {
        const rle_comm_member *m = &g->member[at];
        if (at == g->rank || m->life || m->closed) continue;
        other = rle_comm_early_made(g->comm, m->peer);
        if (other && other->spec.n > HASH) break;
    }
    if (at == g->size) return;
    describe(g, own);
    snprintf(
        words, sizeof words,
        "worker \"%s\" has not made the group of %d workers (%s) but one of %lld (%.*s); "
        "give the same names everywhere",
        rle_peer_name(g->member[at].peer), g->size, own + HASH, (long long)other->number,
        (int)other->spec.n - HASH, other->spec.p + HASH);
    rle_comm_note_odds(g, at, words, strlen(words));
    for (int r = 0; r < g->size; r++)
        if (g->member[r].life)
            rle_comm_tell(g, r, RLE_COMM_ODDS, (uint64_t)at + 1, RLE_OK, words);
}

const char *rle_comm_odds(rle_comm_group *g)
{
    if (g->id[0] != '#') return NULL;
    if (g->odds[0] && g->member[g->odds_rank].life)
        g->odds[0] = 0; /* it came after all */
    if (!g->odds[0]) find_odds(g);
    return g->odds[0] ? g->odds : NULL;
}

void rle_comm_round_closed(rle_comm_round *round)
{
    const rle_comm_group *g = round->group;
    int r = 0;
    while (r < g->size &&
           !(g->member[r].closed && round->number > g->member[r].closed_after))
        r++;
    if (r == g->size) return;
    unsigned long long after = g->member[r].closed_after;
    rle_comm_round_fail(round, false, RLE_CANCELLED,
                        "%s: rank %d (worker \"%s\") has closed the group, after %llu "
                        "collective%s",
                        round->title, r, rle_peer_name(g->member[r].peer), after,
                        after == 1 ? "" : "s");
}

void rle_comm_round_compare(rle_comm_round *round, int rank, const char *title,
                            size_t title_len, const char *spec, size_t spec_len)
{
    const rle_comm_group *g = round->group;
    if (round->first < 0) {
        round->first = rank;
        snprintf(round->title, sizeof round->title, "%.*s", (int)title_len, title);
        snprintf(round->spec, sizeof round->spec, "%.*s", (int)spec_len, spec);
        return;
    }
    if (strlen(round->title) == title_len &&
        memcmp(round->title, title, title_len) == 0 && strlen(round->spec) == spec_len &&
        memcmp(round->spec, spec, spec_len) == 0)
        return;
    bool before = round->first < rank;
    int a = before ? round->first : rank, b = before ? rank : round->first;
    char theirs[RLE_COMM_TITLE + RLE_COMM_SPEC], ours[RLE_COMM_TITLE + RLE_COMM_SPEC];
    snprintf(theirs, sizeof theirs, "%.*s %.*s", (int)title_len, title, (int)spec_len,
             spec);
    snprintf(ours, sizeof ours, "%s %s", round->title, round->spec);
    rle_comm_round_fail(
        round, false, RLE_INVALID_ARGUMENT,
        "collective %llu of the group is not the same everywhere: rank %d "
        "(worker \"%s\") calls %s, rank %d (worker \"%s\") calls %s",
        (unsigned long long)round->number, a, rle_peer_name(g->member[a].peer),
        before ? ours : theirs, b, rle_peer_name(g->member[b].peer),
        before ? theirs : ours);
}
