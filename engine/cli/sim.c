/* sim.c - `rlengine --sim`: the script and the processes it starts, in a simulated world.
 *
 * The script runs in a simulated process of its own; rl.launch there starts others, which
 * run the same script with the same arguments, each in a Lua state of its own. They print
 * through streams of their own, so that lines keep their names in front.
 *
 * The same seed must give the same run. So Lua's clocks show the simulation's time, the
 * seed of Lua's tables is the simulation's (a table's order depends on it), and the
 * program begins again without address space randomization, because the order of a table
 * whose keys are objects depends on where those lie.
 *
 * A run ends with one line on standard error: what was simulated, or what failed and how
 * to see it again. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/process.h"
#include "base/world.h"
#include "cli/program.h"
#include "rpc/sim.h"

#define NANOSECONDS 1e9
#define WALL_AT_START 1700000000.0 /* what os.time() gives when the simulation begins */

/* ---- chance in LuaJIT ---- */

#ifdef __x86_64__
/* LuaJIT asks the kernel for the seed of its tables by this function of the C library,
 * which the program's own stands in front of. Like the library's it reads six arguments,
 * whether there are so many or not. */
__attribute__((visibility("default"), no_sanitize_address)) long syscall(long number, ...)
{
    va_list args;
    long a[6];
    va_start(args, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(args, long);
    va_end(args);
    if (rle_simulated() && number == SYS_getrandom) {
        rle_world_simulated->random((void *)a[0], (size_t)a[1]);
        return a[1];
    }
    register long r10 __asm__("r10") = a[3];
    register long r8 __asm__("r8") = a[4];
    register long r9 __asm__("r9") = a[5];
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8),
                       "r"(r9)
                     : "rcx", "r11", "memory");
    if (result < 0 && result >= -4095) {
        errno = (int)-result;
        return -1;
    }
    return result;
}
#endif

/* ---- processes ---- */

typedef struct member member;

/* What it prints: whole lines with its name in front, or as it comes. */
typedef struct output {
    const member *of;
    int fd;
    FILE *file;
    char line[4096];
    size_t used;
} output;

struct member {
    member *next;
    const rle_cli_program *shared;
    rle_cli_program program;
    char name[80];
    bool prefix, launched;
    char *handoff;
    size_t handoff_size;
    output out, err;
    lua_State *L;
};

static member *members; /* of this simulation; freed at its end */

static void put(int fd, const char *bytes, size_t n)
{
    while (n) {
        ssize_t written = write(fd, bytes, n);
        if (written < 0 && errno != EINTR && errno != EAGAIN) return;
        if (written > 0) {
            bytes += written;
            n -= (size_t)written;
        }
    }
}

static void put_line(output *o)
{
    char line[sizeof o->line + 96];
    int n =
        snprintf(line, sizeof line, "%s | %.*s\n", o->of->name, (int)o->used, o->line);
    put(o->fd, line, (size_t)n);
    o->used = 0;
}

static ssize_t write_output(void *cookie, const char *bytes, size_t n)
{
    output *o = cookie;
    if (rle_sim_dying()) return (ssize_t)n;
    for (size_t i = 0; o->of->prefix && i < n; i++) {
        if (bytes[i] != '\n') o->line[o->used++] = bytes[i];
        if (bytes[i] == '\n' || o->used == sizeof o->line) put_line(o);
    }
    if (!o->of->prefix) put(o->fd, bytes, n);
    return (ssize_t)n;
}

static FILE *open_output(output *o, const member *m, int fd)
{
    *o = (output){.of = m, .fd = fd};
    o->file = fopencookie(o, "w", (cookie_io_functions_t){.write = write_output});
    if (o->file) setvbuf(o->file, NULL, fd == STDOUT_FILENO ? _IOLBF : _IONBF, 0);
    return o->file;
}

static void close_output(output *o)
{
    if (!o->file) return;
    fclose(o->file);
    o->file = NULL;
    if (o->used && !rle_sim_dying()) put_line(o);
}

static int member_main(void *arg)
{
    member *m = arg;
    m->program = *m->shared;
    m->program.code = 0;
    m->program.opening = false;
    rle_sim_streams(open_output(&m->out, m, STDOUT_FILENO),
                    open_output(&m->err, m, STDERR_FILENO));
    if (m->launched) rle_handoff_give(m->handoff, m->handoff_size);
    m->L = luaL_newstate();
    if (!m->L) return EXIT_FAILURE;
    rle_cli_run(m->L, &m->program);
    return m->program.code;
}

static void member_cleanup(void *arg)
{
    member *m = arg;
    if (m->L) rle_cli_close(m->L, &m->program);
    m->L = NULL;
    rle_sim_streams(NULL, NULL);
    close_output(&m->out);
    close_output(&m->err);
}

static rle_status add_member(const rle_cli_program *shared, const char *name,
                             rle_sim_process **out)
{
    member *m = rle_calloc(1, sizeof *m);
    if (!m) return rle_oom(sizeof *m, "simulated process");
    snprintf(m->name, sizeof m->name, "%s", name);
    m->shared = shared;
    m->next = members;
    members = m;
    rle_sim_program p = {
        .name = m->name, .main = member_main, .cleanup = member_cleanup, .arg = m};
    return rle_sim_spawn(&p, out);
}

/* For rl.launch. */
static rle_status start_launched(const rle_process_spec *spec, rle_sim_process **out)
{
    rle_sim_process *p;
    RLE_TRY(add_member(members->shared, spec->name, &p));
    member *m = members;
    m->launched = true;
    m->prefix = spec->pipe_output;
    m->handoff_size = spec->handoff_size;
    m->handoff = rle_malloc(spec->handoff_size + 1);
    if (!m->handoff) return rle_oom(spec->handoff_size + 1, "handoff");
    memcpy(m->handoff, spec->handoff, spec->handoff_size);
    m->handoff[spec->handoff_size] = 0;
    *out = p;
    return RLE_OK;
}

static void free_members(void)
{
    while (members) {
        member *m = members;
        members = m->next;
        rle_free(m->handoff);
        rle_free(m);
    }
}

/* ---- what Lua asks the operating system for ---- */

static int64_t began; /* of the simulation */

static double seconds(void)
{
    return (double)(rle_now() - began) / NANOSECONDS;
}

static int os_time(lua_State *L)
{
    lua_pushnumber(L, (lua_Number)(int64_t)(WALL_AT_START + seconds()));
    return 1;
}

static int os_clock(lua_State *L)
{
    lua_pushnumber(L, seconds());
    return 1;
}

static int os_exit(lua_State *L)
{
    int code = lua_isboolean(L, 1) ? !lua_toboolean(L, 1) : (int)luaL_optinteger(L, 1, 0);
    fflush(stdout);
    rle_sim_exit(code, 0, lua_toboolean(L, 2));
}

static const char os_text[] =
    "local time, clock, exit = ...\n"
    "local real_time, real_date = os.time, os.date\n"
    "os.time = function(t) if t == nil then return time() end return real_time(t) end\n"
    "os.date = function(format, t) return real_date(format or '%c', t or time()) end\n"
    "os.clock, os.exit = clock, exit\n";

/* For scripts that test themselves in a simulation: core.sim, reached by `rlengine.sim`.
 */
static int sim_random(lua_State *L)
{
    lua_pushnumber(L, (lua_Number)rle_sim_random((uint64_t)luaL_checknumber(L, 1)));
    return 1;
}

static int sim_seed(lua_State *L)
{
    const char *seed = lua_tostring(L, lua_upvalueindex(1));
    lua_pushnumber(L, (lua_Number)strtoull(seed, NULL, 10));
    return 1;
}

void rle_cli_sim_open(lua_State *L, const char *seed)
{
    luaL_loadbuffer(L, os_text, sizeof os_text - 1, "=rlengine/cli/sim");
    lua_pushcfunction(L, os_time);
    lua_pushcfunction(L, os_clock);
    lua_pushcfunction(L, os_exit);
    lua_call(L, 3, 0);
    lua_newtable(L);
    lua_pushcfunction(L, sim_random);
    lua_setfield(L, -2, "random");
    lua_pushstring(L, seed);
    lua_pushcclosure(L, sim_seed, 1);
    lua_setfield(L, -2, "seed");
    lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
    lua_pushvalue(L, -2);
    lua_setfield(L, -2, "rlengine.sim");
    lua_pop(L, 2);
}

/* ---- the run ---- */

/* Begin again where memory lies at the same places each time. Where that is not allowed,
 * only tables with objects as keys can differ. */
static void same_places(char **argv)
{
    int now = personality(0xffffffff);
    if (now < 0 || (now & ADDR_NO_RANDOMIZE)) return;
    if (personality((unsigned long)now | ADDR_NO_RANDOMIZE) < 0) return;
    if (!(personality(0xffffffff) & ADDR_NO_RANDOMIZE)) return;
    execv("/proc/self/exe", argv);
}

static void write_event(void *file, const char *line)
{
    fprintf(file, "%s\n", line);
}

static void print_summary(const char *seed, const rle_sim_summary *s)
{
    fprintf(stderr,
            "sim: seed %s: %.3f s of virtual time, %" PRIu64 " messages, %" PRIu64
            " faults",
            seed, (double)s->time / NANOSECONDS, s->sends, s->all_faults);
    const char *before = " (";
    for (int i = 0; i < RLE_SIM_FAULTS; i++) {
        if (!s->faults[i]) continue;
        fprintf(stderr, "%s%" PRIu64 " %s", before, s->faults[i], rle_sim_fault_name(i));
        before = ", ";
    }
    fprintf(stderr, "%s, trace %016" PRIx64 "\n", s->all_faults ? ")" : "", s->trace);
}

/* As a shell reads it. */
static void print_word(const char *word)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=,./:+@%";
    if (*word && word[strspn(word, plain)] == 0) {
        fprintf(stderr, " %s", word);
        return;
    }
    fputs(" '", stderr);
    for (; *word; word++) fputs(*word == '\'' ? "'\\''" : (char[]){*word, 0}, stderr);
    fputc('\'', stderr);
}

/* How to see it again: the same words, with the seed. */
static void print_failure(const char *seed, const rle_cli_program *p, const char *what)
{
    fprintf(stderr, "sim: seed %s failed: %s; repeat with: " RLE_PROGRAM " --sim=%s",
            seed, what, seed);
    for (int i = 1; i < p->argc; i++) {
        if (i < p->options.script && strncmp(p->argv[i], "--sim", 5) == 0 &&
            (p->argv[i][5] == 0 || p->argv[i][5] == '='))
            continue;
        print_word(p->argv[i]);
    }
    fputc('\n', stderr);
}

static bool parse_seed(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && !errno;
}

int rle_cli_simulate(rle_cli_program *p)
{
    static char seed_text[24];
    const rle_cli_options *options = &p->options;
    rle_sim_options o = {0};
    if (!options->seed[0]) {
        uint32_t chosen;
        if (rle_entropy(&chosen, sizeof chosen) != RLE_OK) chosen = 1;
        o.seed = chosen;
    } else if (!parse_seed(options->seed, &o.seed)) {
        fprintf(stderr, RLE_PROGRAM ": --sim=%s: a seed is a whole number from 0\n",
                options->seed);
        return EXIT_FAILURE;
    }
    if (options->faults && rle_sim_parse_faults(options->faults, &o) != RLE_OK) {
        fprintf(stderr, RLE_PROGRAM ": --sim-faults: %s\n", rle_message());
        return EXIT_FAILURE;
    }
    bool script = options->script < p->argc && strcmp(p->argv[options->script], "-") != 0;
    if (options->prompt || (!script && !options->execute)) {
        fprintf(stderr, RLE_PROGRAM ": --sim wants a script in a file, or -e\n");
        return EXIT_FAILURE;
    }
    same_places(p->argv);
    snprintf(seed_text, sizeof seed_text, "%" PRIu64, o.seed);
    p->options.seed = seed_text;
    FILE *log = NULL;
    if (options->sim_log) {
        log = fopen(options->sim_log, "we");
        if (!log) {
            fprintf(stderr, RLE_PROGRAM ": --sim-log=%s: %s\n", options->sim_log,
                    strerror(errno));
            return EXIT_FAILURE;
        }
        o.event = write_event;
        o.self = log;
    }
    rle_sim_process *first;
    rle_status s = rle_sim_begin(&o);
    if (s != RLE_OK) {
        fprintf(stderr, RLE_PROGRAM ": %s\n", rle_message());
        return EXIT_FAILURE;
    }
    began = rle_now();
    rle_sim_set_starter(start_launched);
    s = add_member(p, "main", &first);
    if (s == RLE_OK) s = rle_sim_run();
    char what[256];
    snprintf(what, sizeof what, "%s", s == RLE_OK ? "" : rle_message());
    rle_sim_end_of end = s == RLE_OK ? rle_sim_ended(first) : (rle_sim_end_of){.code = 1};
    rle_sim_summary sum;
    rle_sim_end(&sum);
    free_members();
    if (log) fclose(log);
    if (s == RLE_OK && end.signal) snprintf(what, sizeof what, "signal %d", end.signal);
    if (s == RLE_OK && end.code && !end.signal)
        snprintf(what, sizeof what, "exit code %d", end.code);
    print_summary(seed_text, &sum);
    if (end.code) print_failure(seed_text, p, what);
    /* Memory on the stack of a killed process is lost; a leak checker need not say so. */
    fflush(NULL);
    if (sum.faults[RLE_SIM_KILL] || s != RLE_OK) _exit(end.code);
    return end.code;
}
