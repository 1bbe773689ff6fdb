/* block.cc - the threads of one block.
 *
 * A fiber starts thread after thread and runs each to its end. Only one that has to wait,
 * at a barrier or a warp operation, keeps its fiber; another fiber then starts the next
 * thread. Who has waited long enough is put into `ready` and resumed, in the order that
 * the settings say.
 *
 * Invariants
 *   1. thread_index and thread_number are those of the thread that runs;
 *   2. a thread that has started and not ended either runs, or is in `ready`, or waits:
 * in barrier_waiting or in the group of its warp;
 *   3. when nobody runs, is ready or is left to be started, and some have not ended, they
 *      wait for each other for ever: a deadlock. */
#include <stdio.h>
#include <string.h>

#include <algorithm>

#include "emu_internal.h"
#include "fiber.h"

namespace emu
{

uint3 thread_index;
unsigned thread_number;
uint64_t threads_run;

namespace
{

struct Waiting {
    Fiber *fiber;
    uint3 index;
    unsigned number;
};

/* Lanes that wait for each other: those of one mask. */
struct Group {
    unsigned mask, arrived;
    Warp_operation operation;
    Place here;
};

/* A lane waits in one group at a time, so what it brings and gets lies beside the groups.
 */
struct Warp {
    unsigned present; /* lanes that have not ended */
    unsigned open;    /* bit i: lanes wait in group i, whose lowest lane is i */
    Group group[32];
    uint64_t value[32];
    int source[32];
    Waiting waiting[32];
    Exchanged result[32];
};

struct Block {
    unsigned threads, started, ended;
    std::vector<unsigned> order; /* empty: as numbered */
    std::vector<Waiting> ready;
    size_t next_ready; /* those before it have been resumed */
    std::vector<Waiting> barrier_waiting;
    Place barrier_at;
    unsigned barrier_votes, barrier_result;
    std::vector<Warp> warps;
};

Block block;

const char *file_of(const Place &p)
{
    const char *slash = strrchr(p.file, '/');
    return slash ? slash + 1 : p.file;
}

/* The running thread waits until the scheduler resumes it. */
Waiting me()
{
    return Waiting{fiber_running(), thread_index, thread_number};
}

void release(const Waiting &w)
{
    block.ready.push_back(w);
}

bool same_place(const Place &a, const Place &b)
{
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

void start(unsigned t)
{
    thread_number = t;
    const dim3 &size = block_size;
    if (size.x == block.threads) { /* most blocks: spare the divisions */
        thread_index = uint3{t, 0, 0};
        return;
    }
    thread_index.x = t % size.x;
    unsigned rest = t / size.x;
    thread_index.y = rest % size.y;
    thread_index.z = rest / size.y;
}

/* ---- warps ---- */

Exchanged result_of(const Warp *w, const Group *g, int lane)
{
    int s = w->source[lane];
    Exchanged e = {s < 0                 ? w->value[lane]
                   : g->arrived >> s & 1 ? w->value[s]
                                         : 0x7fc0dead7fc0deadull,
                   0};
    if (g->operation == WARP_SHUFFLE || g->operation == WARP_SYNC) return e;
    for (int l = 0; l < 32; l++) {
        if (!(g->arrived >> l & 1)) continue;
        bool set =
            g->operation == WARP_MATCH ? w->value[l] == w->value[lane] : w->value[l] & 1;
        e.ballot |= static_cast<unsigned>(set) << l;
    }
    return e;
}

/* When the lanes of the group that have not ended are all here, each gets its result. */
void complete(Warp *w, Group *g)
{
    if (g->mask & w->present & ~g->arrived) return;
    w->open &= ~(1u << __builtin_ctz(g->mask));
    for (int i = 0; i < 32; i++) {
        int l = settings.order == REVERSE ? 31 - i : i;
        if (!(g->arrived >> l & 1)) continue;
        w->result[l] = result_of(w, g, l);
        release(w->waiting[l]);
    }
}

} // namespace

Exchanged exchange(Warp_operation operation, unsigned mask, uint64_t value, int source,
                   Place here)
{
    static const char *const name[] = {"__syncwarp", "a shuffle", "a vote", "a match"};
    unsigned l = thread_number & 31;
    Warp *w = &block.warps[thread_number >> 5];
    if (!(mask >> l & 1)) {
        end_device(running_on, cudaErrorLaunchFailure,
                   "%s: lane %u is not in the mask %08x of %s (%s:%d)", running_where(),
                   l, mask, name[operation], file_of(here), here.line);
        abandon_thread();
    }
    int lowest = __builtin_ctz(mask);
    Group *g = &w->group[lowest];
    if (!(w->open >> lowest & 1)) {
        *g = Group{mask, 0, operation, here};
        w->open |= 1u << lowest;
    } else if (g->mask != mask || g->operation != operation ||
               !same_place(g->here, here)) {
        end_device(running_on, cudaErrorLaunchFailure,
                   "%s: lanes of a warp diverge: some are at %s with mask %08x (%s:%d), "
                   "lane %u is at %s with mask %08x (%s:%d)",
                   running_where(), name[g->operation], g->mask, file_of(g->here),
                   g->here.line, l, name[operation], mask, file_of(here), here.line);
        abandon_thread();
    }
    w->value[l] = value;
    w->source[l] = source;
    w->waiting[l] = me();
    g->arrived |= 1u << l;
    complete(w, g);
    fiber_leave();
    return w->result[l];
}

namespace
{

/* ---- the scheduler ---- */

void fiber_body()
{
    running->run_threads();
}

/* The next thread to go on: one that is ready. */
Waiting pick_ready()
{
    size_t i = block.next_ready;
    if (settings.order == RANDOM) {
        i += random_below(block.ready.size() - block.next_ready);
        std::swap(block.ready[i], block.ready[block.next_ready]);
    }
    Waiting w = block.ready[block.next_ready++];
    if (block.next_ready == block.ready.size()) {
        block.ready.clear();
        block.next_ready = 0;
    }
    return w;
}

void prepare()
{
    unsigned n = block_size.x * block_size.y * block_size.z;
    block.threads = n;
    block.started = block.ended = 0;
    block.ready.clear();
    block.next_ready = 0;
    block.barrier_waiting.clear();
    block.barrier_votes = 0;
    block.warps.resize((n + 31) / 32);
    for (size_t i = 0; i < block.warps.size(); i++) {
        unsigned lanes = n - static_cast<unsigned>(i) * 32;
        block.warps[i].present = lanes >= 32 ? ~0u : (1u << lanes) - 1;
        block.warps[i].open = 0;
    }
    block.order.clear();
    if (settings.order == FORWARD) return;
    for (unsigned i = 0; i < n; i++) block.order.push_back(n - 1 - i);
    if (settings.order == RANDOM)
        for (unsigned i = n - 1; i > 0; i--)
            std::swap(block.order[i], block.order[random_below(i + 1)]);
}

/* Fibers that will not be resumed: those of threads that wait or were ready. */
void drop_waiting()
{
    for (; block.next_ready < block.ready.size(); block.next_ready++)
        fiber_drop(block.ready[block.next_ready].fiber);
    for (Waiting &w : block.barrier_waiting) fiber_drop(w.fiber);
    for (Warp &w : block.warps)
        for (int i = 0; i < 32; i++)
            for (int l = 0; l < 32 && w.open >> i & 1; l++)
                if (w.group[i].arrived >> l & 1) fiber_drop(w.waiting[l].fiber);
}

void report_deadlock()
{
    size_t at_barrier = block.barrier_waiting.size();
    for (Warp &w : block.warps) {
        if (!w.open) continue;
        Group &g = w.group[__builtin_ctz(w.open)];
        end_device(running_on, cudaErrorLaunchFailure,
                   "%s: deadlock: lanes %08x of a warp wait at %s:%d for lanes %08x; %zu "
                   "threads wait at a barrier, %u have returned",
                   running_where(), g.arrived, file_of(g.here), g.here.line,
                   g.mask & w.present & ~g.arrived, at_barrier, block.ended);
        return;
    }
    end_device(running_on, cudaErrorLaunchFailure,
               "%s: deadlock: %zu of %u threads wait at __syncthreads (%s:%d)",
               running_where(), at_barrier, block.threads, file_of(block.barrier_at),
               block.barrier_at.line);
}

} // namespace

bool next_thread()
{
    if (block.started == block.threads) return false;
    unsigned t = block.started++;
    start(block.order.empty() ? t : block.order[t]);
    return true;
}

void end_thread()
{
    block.ended++;
    Warp *w = &block.warps[thread_number >> 5];
    w->present &= ~(1u << (thread_number & 31));
    for (unsigned open = w->open; open; open &= open - 1)
        complete(w, &w->group[__builtin_ctz(open)]);
    if (!block.barrier_waiting.empty()) {
        end_device(
            running_on, cudaErrorLaunchFailure,
            "%s: thread (%u,%u,%u) returned while %zu wait at __syncthreads (%s:%d)",
            running_where(), thread_index.x, thread_index.y, thread_index.z,
            block.barrier_waiting.size(), file_of(block.barrier_at),
            block.barrier_at.line);
        abandon_thread();
    }
}

unsigned barrier(bool predicate, Place here)
{
    if (block.ended) {
        end_device(
            running_on, cudaErrorLaunchFailure,
            "%s: thread (%u,%u,%u) waits at __syncthreads (%s:%d), which %u threads "
            "of the block do not reach: they have returned",
            running_where(), thread_index.x, thread_index.y, thread_index.z,
            file_of(here), here.line, block.ended);
        abandon_thread();
    }
    if (!block.barrier_waiting.empty() && !same_place(block.barrier_at, here)) {
        end_device(running_on, cudaErrorLaunchFailure,
                   "%s: threads diverge: %zu wait at __syncthreads (%s:%d), thread "
                   "(%u,%u,%u) at another (%s:%d)",
                   running_where(), block.barrier_waiting.size(),
                   file_of(block.barrier_at), block.barrier_at.line, thread_index.x,
                   thread_index.y, thread_index.z, file_of(here), here.line);
        abandon_thread();
    }
    block.barrier_at = here;
    block.barrier_votes += predicate;
    block.barrier_waiting.push_back(me());
    if (block.barrier_waiting.size() == block.threads) {
        block.barrier_result = block.barrier_votes;
        block.barrier_votes = 0;
        for (Waiting &w : block.barrier_waiting) release(w);
        block.barrier_waiting.clear();
    }
    fiber_leave();
    return block.barrier_result;
}

void abandon_thread()
{
    fiber_quit();
}

bool run_block()
{
    prepare();
    for (;;) {
        bool startable = block.started < block.threads, some_ready = !block.ready.empty();
        if (!startable && !some_ready) break;
        /* Threads start first, so that the order they start in is the order they run in;
         * at random, either. */
        bool resume =
            some_ready &&
            (!startable || (settings.order == RANDOM && random_number() % 2 == 0));
        Fiber *f;
        if (resume) {
            Waiting w = pick_ready();
            thread_index = w.index;
            thread_number = w.number;
            f = w.fiber;
        } else {
            f = fiber_take(fiber_body);
        }
        Left how = fiber_resume(f);
        if (how == FINISHED) fiber_keep(f);
        if (how == QUIT) {
            fiber_drop(f);
            drop_waiting();
            return false;
        }
    }
    threads_run += block.threads;
    if (block.ended == block.threads) return true;
    report_deadlock();
    drop_waiting();
    return false;
}

} // namespace emu
