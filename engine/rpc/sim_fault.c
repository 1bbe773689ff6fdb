/* sim_fault.c - faults of a simulation: each kind comes after times drawn from an
 * exponential distribution, to a stream or a process drawn at random. */
#include <math.h>

#include "rpc/sim_internal.h"

static rle_sim *const world = &rle_sim_world;

static int64_t next_time(rle_sim_fault fault)
{
    double mean = world->o.every[fault];
    if (!(mean > 0)) return RLE_NEVER;
    double u = ((double)(rle_sim_bits() >> 11) + 1) * 0x1p-53;
    return world->now + 1 + (int64_t)(-log(u) * mean * 1e9);
}

void rle_sim_faults_begin(void)
{
    for (int i = 0; i < RLE_SIM_FAULTS; i++) {
        world->fault_at[i] = next_time((rle_sim_fault)i);
        if (world->fault_at[i] != RLE_NEVER)
            world->fault_at[i] += (int64_t)(world->o.from * RLE_SECONDS);
    }
}

int64_t rle_sim_next_fault(void)
{
    int64_t at = RLE_NEVER;
    for (int i = 0; i < RLE_SIM_FAULTS; i++)
        if (world->fault_at[i] < at) at = world->fault_at[i];
    return at;
}

/* One of those that live (and may be killed), or NULL. */
static rle_sim_process *some_process(bool killable)
{
    rle_sim_process *chosen = NULL;
    uint64_t count = 0;
    for (rle_sim_process *p = world->processes; p; p = p->next) {
        if (p->state == RLE_SIM_DEAD || p->killed || (killable && !p->program.killable))
            continue;
        if (rle_sim_random(++count) == 0) chosen = p;
    }
    return chosen;
}

/* False: there was nothing to break. */
static bool break_stream(rle_sim_fault fault)
{
    int count = rle_sim_stream_count();
    if (!count) return false;
    int n = (int)rle_sim_random((uint64_t)count);
    rle_sim_note(rle_sim_fault_name(fault), n, 0, 0);
    if (fault == RLE_SIM_CUT)
        rle_sim_stream_cut(n, rle_sim_chance(700), rle_sim_chance(500));
    else if (fault == RLE_SIM_HALF_OPEN)
        rle_sim_stream_silence(n);
    else
        rle_sim_stream_slow(n);
    return true;
}

static bool partition(void)
{
    if (world->heals_at > world->now) return false;
    for (rle_sim_process *p = world->processes; p; p = p->next)
        p->island = rle_sim_chance(500);
    world->heals_at = world->now + rle_sim_between(100 * RLE_SIM_MS, 20 * RLE_SECONDS);
    rle_sim_note("partition", world->heals_at, 0, 0);
    return true;
}

static bool trouble_process(rle_sim_fault fault)
{
    rle_sim_process *p = some_process(fault == RLE_SIM_KILL);
    if (!p) return false;
    int64_t now = world->now;
    if (fault == RLE_SIM_KILL) {
        int64_t again_at = now + rle_sim_between(RLE_SIM_MS, 5 * RLE_SECONDS);
        rle_sim_kill(p, 9, p->program.again ? again_at : RLE_NEVER);
    } else if (fault == RLE_SIM_STOP) {
        /* Short or long: most are over before anybody notices. */
        int64_t most = rle_sim_chance(500) ? RLE_SECONDS : 20 * RLE_SECONDS;
        p->stopped_until = now + rle_sim_between(50 * RLE_SIM_MS, most);
        rle_sim_note("stop", p->number, p->stopped_until, 0);
    } else {
        p->refuses_until = now + rle_sim_between(50 * RLE_SIM_MS, 3 * RLE_SECONDS);
        rle_sim_note("refuse", p->number, p->refuses_until, 0);
    }
    return true;
}

void rle_sim_do_faults(void)
{
    for (int i = 0; i < RLE_SIM_FAULTS; i++) {
        rle_sim_fault fault = (rle_sim_fault)i;
        if (world->fault_at[i] > world->now) continue;
        bool done =
            fault == RLE_SIM_PARTITION ? partition()
            : fault == RLE_SIM_CUT || fault == RLE_SIM_HALF_OPEN || fault == RLE_SIM_SLOW
                ? break_stream(fault)
                : trouble_process(fault);
        if (done) world->sum.faults[i]++;
        world->fault_at[i] = next_time(fault);
    }
}
