/* sim_process.c - simulated processes: their stacks, and which of them goes on next.
 *
 * The scheduler runs on the stack of rle_sim_run. A process that gives way goes back to
 * it; it picks whoever can go on first, at random among those that can at the same
 * moment, and moves the clock there.
 *
 * What a process holds is given back on a stack of its own, when its main function has
 * returned, exited from inside, or gave way for the last time because the process is
 * killed. The innermost engine call was then a turn of its loop, so the structures of the
 * engine are whole; the old stack stays as it was, because some of them lie on it. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "rpc/sim_internal.h"

#if defined(__SANITIZE_ADDRESS__)
#define RLE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RLE_ASAN 1
#endif
#endif
#ifdef RLE_ASAN
#include <sanitizer/asan_interface.h>
#endif

enum { STACK_SIZE = 8 << 20, PROCESSES_MAX = 4096 };

/* ---- going from one stack to another ---- */

/* The sanitizer keeps a picture of the stack it thinks it is on. */
static void leave_stack(void **save, const void *bottom, size_t size)
{
#ifdef RLE_ASAN
    __sanitizer_start_switch_fiber(save, bottom, size);
#else
    (void)save;
    (void)bottom;
    (void)size;
#endif
}

static void arrive(void *saved, const void **bottom, size_t *size)
{
#ifdef RLE_ASAN
    __sanitizer_finish_switch_fiber(saved, bottom, size);
#else
    (void)saved;
    (void)bottom;
    (void)size;
#endif
}

static void to_scheduler(rle_sim_process *p)
{
    rle_sim *s = &rle_sim_world;
    leave_stack(&p->fake_stack, s->scheduler_stack, s->scheduler_stack_size);
    swapcontext(&p->stack_at, &s->scheduler);
    arrive(p->fake_stack, NULL, NULL);
}

static void section(void *to, const void *from)
{
    void *at;
    size_t size;
    rle_process_section(&at, &size);
    memcpy(to ? to : at, from ? from : at, size);
}

/* The variables of `p` become the present ones, and back. */
static void put_on(rle_sim_process *p, rle_context **before)
{
    rle_sim *s = &rle_sim_world;
    section(s->outside, NULL);
    section(NULL, p->image);
    *before = rle_context_switch(p->context);
    s->running = p;
    stdout = p->out ? p->out : s->out;
    stderr = p->err ? p->err : s->err;
}

static void take_off(rle_sim_process *p, rle_context *before)
{
    rle_sim *s = &rle_sim_world;
    p->context = rle_context_switch(before);
    s->running = NULL;
    section(p->image, NULL);
    section(NULL, s->outside);
    stdout = s->out;
    stderr = s->err;
}

static void go_on(rle_sim_process *p, void *stack)
{
    rle_sim *s = &rle_sim_world;
    rle_context *before;
    put_on(p, &before);
    leave_stack(&s->scheduler_fake, stack, STACK_SIZE);
    swapcontext(&s->scheduler, &p->stack_at);
    arrive(s->scheduler_fake, NULL, NULL);
    take_off(p, before);
}

void rle_sim_give_way(void)
{
    to_scheduler(rle_sim_world.running);
}

static void first_function(void)
{
    rle_sim *s = &rle_sim_world;
    arrive(NULL, (const void **)&s->scheduler_stack, &s->scheduler_stack_size);
    rle_sim_process *p = s->running;
    p->end_code = p->program.main(p->program.arg);
    p->end_signal = 0;
    p->state = RLE_SIM_LEAVING;
    p->at = rle_sim_time();
    to_scheduler(p);
}

static void last_function(void)
{
    rle_sim *s = &rle_sim_world;
    arrive(NULL, (const void **)&s->scheduler_stack, &s->scheduler_stack_size);
    rle_sim_process *p = s->running;
    if (p->program.cleanup) p->program.cleanup(p->program.arg);
    p->state = RLE_SIM_DEAD;
    to_scheduler(p);
}

/* ---- life ---- */

static void *new_stack(void)
{
    void *stack = mmap(NULL, STACK_SIZE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) return NULL;
    mprotect(stack, 4096, PROT_NONE);
#ifdef RLE_ASAN
    __asan_unpoison_memory_region(stack, STACK_SIZE);
#endif
    return stack;
}

static void free_stacks(rle_sim_process *p)
{
    if (p->stack) munmap(p->stack, STACK_SIZE);
    if (p->cleanup_stack) munmap(p->cleanup_stack, STACK_SIZE);
    p->stack = p->cleanup_stack = NULL;
}

static void begin_on(rle_sim_process *p, void *stack, void (*function)(void))
{
    getcontext(&p->stack_at);
    p->stack_at.uc_stack.ss_sp = stack;
    p->stack_at.uc_stack.ss_size = STACK_SIZE;
    p->stack_at.uc_link = NULL;
    makecontext(&p->stack_at, function, 0);
    p->fake_stack = NULL;
}

static rle_status start(rle_sim_process *p, int64_t at)
{
    p->stack = new_stack();
    p->cleanup_stack = new_stack();
    if (!p->stack || !p->cleanup_stack) {
        free_stacks(p);
        return rle_oom(2 * STACK_SIZE, "stack of a simulated process");
    }
    section(p->image, rle_sim_world.image);
    begin_on(p, p->stack, first_function);
    p->state = RLE_SIM_NEW;
    p->at = at;
    p->stopped_until = p->refuses_until = 0;
    p->context = NULL;
    p->turning = NULL;
    p->poked = p->killed = p->dying = false;
    p->on_term = NULL;
    p->out = p->err = NULL;
    p->starts++;
    return RLE_OK;
}

rle_status rle_sim_spawn(const rle_sim_program *program, rle_sim_process **out)
{
    rle_sim *s = &rle_sim_world;
    if (s->process_count == PROCESSES_MAX)
        return rle_fail(RLE_RESOURCE_EXHAUSTED, "more than %d simulated processes",
                        PROCESSES_MAX);
    void *begin;
    size_t size;
    rle_process_section(&begin, &size);
    rle_sim_process *p = rle_calloc(1, sizeof *p);
    if (p) p->image = rle_malloc(size);
    if (!p || !p->image) {
        rle_free(p);
        return rle_oom(sizeof *p + size, "simulated process");
    }
    p->program = *program;
    p->parent = s->running;
    p->number = s->process_count + 1;
    snprintf(p->name, sizeof p->name, "%s", program->name);
    rle_status status = start(p, rle_sim_time() + rle_sim_between(0, 5 * RLE_SIM_MS));
    if (status != RLE_OK) {
        rle_free(p->image);
        rle_free(p);
        return status;
    }
    s->process_count++;
    rle_sim_process **at = &s->processes;
    while (*at) at = &(*at)->next;
    *at = p;
    rle_sim_note("start", p->number, 0, 0);
    if (out) *out = p;
    return RLE_OK;
}

/* It is over but for what it holds; unless it never began. */
static void end(rle_sim_process *p, bool began, int64_t again_at)
{
    if (began) {
        begin_on(p, p->cleanup_stack, last_function);
        go_on(p, p->cleanup_stack);
    }
    p->state = RLE_SIM_DEAD;
    rle_sim_net_close_all(p);
    free_stacks(p);
    rle_sim_note("end", p->number, p->end_code, p->end_signal);
    if (again_at != RLE_NEVER && start(p, again_at) == RLE_OK) {
        rle_sim_note("restart", p->number, again_at, 0);
        return;
    }
    p->end =
        (rle_sim_end_of){.ended = true, .code = p->end_code, .signal = p->end_signal};
    if (p->parent) p->parent->poked = true;
}

void rle_sim_kill(rle_sim_process *p, int signal, int64_t again_at)
{
    if (p->state == RLE_SIM_DEAD) return;
    rle_sim_note("kill", p->number, signal, 0);
    rle_sim_net_close_all(p);
    p->end_code = 128 + signal;
    p->end_signal = signal;
    p->dying = true;
    end(p, p->state != RLE_SIM_NEW, again_at);
}

void rle_sim_signal(rle_sim_process *p, int number)
{
    if (p->state == RLE_SIM_DEAD || p == rle_sim_world.running) return;
    rle_sim_process *sender = rle_sim_world.running;
    rle_context *before = NULL, *sender_before = NULL;
    if (sender) {
        /* The sender's variables are laid aside as when it gives way. */
        sender_before = rle_context_switch(NULL);
        section(sender->image, NULL);
    }
    if (number == 15 && p->on_term) {
        put_on(p, &before);
        p->on_term(number);
        take_off(p, before);
        p->poked = true;
        rle_sim_note("signal", p->number, number, 0);
    } else {
        /* It notices when its turn comes; others notice now. */
        rle_sim_world.running = NULL;
        rle_sim_net_close_all(p);
        p->killed = true;
        p->end_code = 128 + number;
        p->end_signal = number;
        p->stopped_until = 0;
    }
    if (sender) {
        section(NULL, sender->image);
        rle_context_switch(sender_before);
        rle_sim_world.running = sender;
        stdout = sender->out ? sender->out : rle_sim_world.out;
        stderr = sender->err ? sender->err : rle_sim_world.err;
    }
}

void rle_sim_free_processes(void)
{
    rle_sim *s = &rle_sim_world;
    while (s->processes) {
        rle_sim_process *p = s->processes;
        if (p->state != RLE_SIM_DEAD) rle_sim_kill(p, 9, RLE_NEVER);
        s->processes = p->next;
        rle_free(p->image);
        rle_free(p);
    }
}

/* ---- who goes on, and when ---- */

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t can_go_on(const rle_sim_process *p)
{
    if (p->state == RLE_SIM_DEAD) return RLE_NEVER;
    if (p->killed) return rle_sim_world.now;
    int64_t at = p->at;
    if (p->state == RLE_SIM_BLOCKED && !p->poked) {
        int64_t ready = rle_sim_loop_ready(p->turning);
        if (ready == RLE_NEVER) return RLE_NEVER;
        at = later(at, ready);
    }
    if (p->state == RLE_SIM_ASLEEP && !p->poked) {
        if (p->until == RLE_NEVER) return RLE_NEVER;
        at = later(at, p->until);
    }
    return later(at, p->stopped_until);
}

static rle_sim_process *pick(int64_t *when)
{
    rle_sim *s = &rle_sim_world;
    rle_sim_process *best = NULL;
    int64_t best_at = RLE_NEVER;
    uint64_t same = 0;
    for (rle_sim_process *p = s->processes; p; p = p->next) {
        int64_t at = can_go_on(p);
        if (at == RLE_NEVER) continue;
        if (at < s->now) at = s->now;
        if (at > best_at) continue;
        same = at < best_at ? 1 : same + 1;
        if (same > 1 && rle_sim_random(same) != 0) continue;
        best = p;
        best_at = at;
    }
    *when = best_at;
    return best;
}

rle_status rle_sim_run(void)
{
    rle_sim *s = &rle_sim_world;
    int64_t limit = (int64_t)(s->o.hours * 3600 * RLE_SECONDS);
    for (;;) {
        bool any = false;
        for (const rle_sim_process *p = s->processes; p; p = p->next)
            any |= p->state != RLE_SIM_DEAD;
        if (!any) return RLE_OK;
        int64_t when, fault = rle_sim_next_fault();
        rle_sim_process *p = pick(&when);
        if (!p)
            return rle_fail(RLE_ABORTED,
                            "deadlock: no process can go on, and nothing is to come");
        if ((fault < when ? fault : when) > limit)
            return rle_fail(RLE_ABORTED, "not done after %g hours", s->o.hours);
        if (fault < when) {
            s->now = later(s->now, fault);
            rle_sim_do_faults();
            continue;
        }
        s->now = when;
        p->poked = false;
        if (p->killed) {
            p->dying = true;
            end(p, p->state != RLE_SIM_NEW, RLE_NEVER);
        } else if (p->state == RLE_SIM_LEAVING) {
            end(p, true, RLE_NEVER);
        } else {
            go_on(p, p->stack);
        }
    }
}

/* ---- for the running process ---- */

void rle_sim_wait(int64_t until)
{
    rle_sim_process *p = rle_sim_world.running;
    p->until = until;
    p->state = RLE_SIM_ASLEEP;
    p->at = rle_sim_time();
    p->ahead = 0;
    rle_sim_give_way();
}

void rle_sim_exit(int code, int signal, bool orderly)
{
    rle_sim_process *p = rle_sim_world.running;
    p->end_code = signal ? 128 + signal : code;
    p->end_signal = signal;
    if (!orderly) {
        p->dying = true;
        rle_sim_net_close_all(p);
    }
    p->state = RLE_SIM_LEAVING;
    p->at = rle_sim_time();
    to_scheduler(p);
    __builtin_unreachable();
}

void rle_sim_on_term(void (*handler)(int))
{
    rle_sim_world.running->on_term = handler;
}

void rle_sim_streams(FILE *out, FILE *err)
{
    rle_sim_process *p = rle_sim_world.running;
    p->out = out;
    p->err = err;
    stdout = out ? out : rle_sim_world.out;
    stderr = err ? err : rle_sim_world.err;
}

void rle_sim_killable(bool yes)
{
    rle_sim_world.running->program.killable = yes;
}

bool rle_sim_dying(void)
{
    return rle_sim_world.running && rle_sim_world.running->dying;
}

rle_sim_end_of rle_sim_ended(const rle_sim_process *p)
{
    return p->end;
}

const char *rle_sim_process_name(const rle_sim_process *p)
{
    return p->name;
}

int rle_sim_starts(const rle_sim_process *p)
{
    return p->starts;
}
