/* sim_world.c - what processes ask the system for, besides the network: chance, their
 * number, other processes (base/world.h). */
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/process.h"
#include "rpc/sim_internal.h"

static rle_sim *const world = &rle_sim_world;

/* ---- texts: marks that processes leave, lines that they send to others ---- */

typedef struct rle_sim_text {
    struct rle_sim_text *next;
    char where[128], line[256];
} rle_sim_text;

static void add_text(rle_sim_text **list, const char *where, const char *line)
{
    rle_sim_text *t = rle_calloc(1, sizeof *t);
    if (!t) return;
    snprintf(t->where, sizeof t->where, "%s", where);
    snprintf(t->line, sizeof t->line, "%s", line);
    while (*list) list = &(*list)->next;
    *list = t;
}

static rle_sim_text **find_text(rle_sim_text **list, const char *where)
{
    while (*list && strcmp((*list)->where, where) != 0) list = &(*list)->next;
    return list;
}

void rle_sim_free_texts(void)
{
    rle_sim_text **lists[] = {&world->marks, &world->asked};
    for (int i = 0; i < 2; i++)
        while (*lists[i]) {
            rle_sim_text *t = *lists[i];
            *lists[i] = t->next;
            rle_free(t);
        }
}

static bool marked(const char *path)
{
    return *find_text(&world->marks, path) != NULL;
}

static void mark(const char *path)
{
    if (!marked(path)) add_text(&world->marks, path, "");
}

static void ask(const char *where, const char *line)
{
    add_text(&world->asked, where, line);
    if (world->running->parent) world->running->parent->poked = true;
}

static bool asked(const char *where, char *line, size_t size)
{
    rle_sim_text **at = find_text(&world->asked, where), *t = *at;
    if (!t) return false;
    snprintf(line, size, "%s", t->line);
    *at = t->next;
    rle_free(t);
    return true;
}

/* ---- processes ---- */

static rle_status (*starter)(const rle_process_spec *, rle_sim_process **);

void rle_sim_set_starter(rle_status (*start)(const struct rle_process_spec *spec,
                                             rle_sim_process **out))
{
    starter = start;
}

static pid_t number_of(const rle_sim_process *p)
{
    return 1000 + p->number;
}

static rle_sim_process *of(pid_t pid)
{
    rle_sim_process *p = world->processes;
    while (p && number_of(p) != pid) p = p->next;
    return p;
}

static pid_t own_pid(void)
{
    return world->running ? number_of(world->running) : getpid();
}

static rle_status start_process(const rle_process_spec *spec, pid_t *pid)
{
    rle_sim_process *p;
    if (!starter)
        return rle_fail(RLE_UNIMPLEMENTED, "this simulation cannot start processes");
    RLE_TRY(starter(spec, &p));
    *pid = number_of(p);
    return RLE_OK;
}

static void send_signal(pid_t pid, int number)
{
    rle_sim_process *p = of(pid);
    if (p) rle_sim_signal(p, number);
}

static bool ended(pid_t pid, int *wait_status)
{
    const rle_sim_process *p = of(pid);
    if (!p || !p->end.ended) return false;
    *wait_status = p->end.signal ? p->end.signal : (p->end.code & 255) << 8;
    return true;
}

static void rest(int64_t until)
{
    rle_sim_wait(until == INT64_MAX ? RLE_NEVER : until - RLE_SIM_EPOCH);
}

const rle_world rle_sim_as_world = {.random = rle_sim_entropy,
                                    .pid = own_pid,
                                    .silent = rle_sim_dying,
                                    .start = start_process,
                                    .signal = send_signal,
                                    .ended = ended,
                                    .rest = rest,
                                    .mark = mark,
                                    .marked = marked,
                                    .ask = ask,
                                    .asked = asked};
