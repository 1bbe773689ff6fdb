/* main.c - the program `rlengine`: options, the script, exit codes.
 *
 * Options, the table `arg`, `...` and exit codes are those of the stand-alone `lua`, so
 * that a script with `#!/usr/bin/env rlengine` behaves as its writer expects. */
#include "cli/cli_internal.h"

#include <luajit.h>
#include <stdio.h>
#include <stdlib.h>
#include <sysexits.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/world.h"
#include "cli/program.h"
#include "device/device.h"

static const char usage[] =
    "usage: rlengine [options] [script.lua [arguments]]\n"
    "\n"
    "  rlengine train.lua --episodes=500   run a script; what follows is for it\n"
    "  rlengine                            an interactive prompt: the engine is `rl`\n"
    "  rlengine < train.lua                run what comes on standard input\n"
    "\n"
    "options\n"
    "  -e chunk       run the text `chunk`; may be repeated\n"
    "  -l name        require the module `name` into a global of that name\n"
    "  -l g=name      require the module `name` into the global `g`\n"
    "  -i             enter the prompt after the script\n"
    "  -v, --version  print the version; --version adds the GPUs and ends\n"
    "  -E             ignore LUA_INIT, LUA_PATH and LUA_CPATH\n"
    "  --sim[=seed]   run the script and what it starts in one process, with a\n"
    "                 simulated network and clock: the same seed, the same run\n"
    "  --sim-faults=list  what goes wrong there, such as cut=20,stop,kill or all\n"
    "  --sim-log=file     every event of it\n"
    "  --memory-report  at the end print who holds what of every device's memory\n"
    "  -h, --help     print this\n"
    "  --             stop reading options\n"
    "  -              run standard input, then stop reading options\n"
    "\n"
    "A script begins with\n"
    "  local rl = require \"rlengine\"\n"
    "Only source text is run, never bytecode.\n"
    "\n"
    "exit codes\n"
    "  0    done\n"
    "  1    a script failed, or an option is wrong\n"
    "  65   the script is bytecode; a worker's name is taken (ALREADY_EXISTS)\n"
    "  69   a worker is not there or was lost, an address is in use (UNAVAILABLE)\n"
    "  70   a GPU can no longer be used\n"
    "  71   no memory\n"
    "  77   the token or a certificate is missing or refused (UNAUTHENTICATED)\n"
    "  78   rpc.init refuses a setting, such as an open network without tls\n"
    "  130  interrupted by Ctrl-C; os.exit(n) gives n\n";

static void print_version(void)
{
    printf("rlengine %s (%s)\n", RLE_VERSION, LUAJIT_VERSION);
}

/* What a script that asks for a GPU would get, or why it would get none. */
static void print_gpus(void)
{
    int count;
    if (rle_device_available(RLE_DEVICE_CUDA, &count) != RLE_OK) {
        printf("no GPU is used: %s\n", rle_message());
        return;
    }
    for (int i = 0; i < count; i++) {
        rle_device_properties p;
        if (rle_device_describe(RLE_DEVICE_CUDA, i, &p) != RLE_OK)
            printf("cuda:%d: %s\n", i, rle_message());
        else
            printf("cuda:%d: %s, compute capability %d.%d, %.1f GiB\n", i, p.name,
                   p.major, p.minor, (double)p.memory / 0x1p30);
    }
}

/* The table `arg`: the script at 0, what follows it from 1, what precedes it below 0. */
static void set_arg(lua_State *L, int argc, char **argv, int script)
{
    if (script == argc) script = 0;
    lua_createtable(L, argc - script, script + 1);
    for (int i = 0; i < argc; i++) {
        lua_pushstring(L, argv[i]);
        lua_rawseti(L, -2, i - script);
    }
    lua_setglobal(L, "arg");
}

static void set_program(lua_State *L, int argc, char **argv)
{
    lua_newtable(L);
    lua_createtable(L, argc, 1);
    for (int i = 0; i < argc; i++) {
        lua_pushstring(L, argv[i]);
        lua_rawseti(L, -2, i);
    }
    lua_setfield(L, -2, "argv");
    lua_setfield(L, LUA_REGISTRYINDEX, RLE_CLI_PROGRAM);
}

/* After a failure whose text is on top: report it and return the exit code. */
static int failed(lua_State *L)
{
    rle_cli_report(L);
    return rle_cli_exit_code();
}

/* Run the loaded function on top, below `nargs` arguments; load_status is from loading. */
static int run(lua_State *L, int load_status, int nargs)
{
    if (load_status == 0) return rle_cli_call(L, nargs, 0) == 0 ? 0 : failed(L);
    rle_cli_report(L);
    return load_status == LUA_ERRMEM ? EX_OSERR : EXIT_FAILURE;
}

static int run_text(lua_State *L, const char *text, const char *name)
{
    return run(L, luaL_loadbufferx(L, text, strlen(text), name, "t"), 0);
}

static int run_init(lua_State *L)
{
    const char *init = getenv("LUA_INIT");
    if (!init) return 0;
    if (init[0] != '@') return run_text(L, init, "=LUA_INIT");
    bool bytecode;
    int status = rle_cli_load_file(L, init + 1, &bytecode);
    int code = run(L, status, 0);
    return bytecode ? RLE_EXIT_BYTECODE : code;
}

static int require_into_global(lua_State *L, const char *option)
{
    const char *equals = strchr(option, '=');
    const char *module = equals ? equals + 1 : option;
    lua_getglobal(L, "require");
    lua_pushstring(L, module);
    if (rle_cli_call(L, 1, 1) != 0) return failed(L);
    lua_pushlstring(L, option, equals ? (size_t)(equals - option) : strlen(option));
    lua_insert(L, -2);
    lua_settable(L, LUA_GLOBALSINDEX);
    return 0;
}

/* -e and -l in the order they were given. */
static int run_options(lua_State *L, char **argv, int script)
{
    for (int i = 1; i < script; i++) {
        if (strcmp(argv[i], "--") == 0) break;
        char letter = argv[i][1];
        if (letter != 'e' && letter != 'l') continue;
        const char *value = rle_cli_option_value(argv, &i);
        int code = letter == 'e' ? run_text(L, value, "=(command line)")
                                 : require_into_global(L, value);
        if (code != 0) return code;
    }
    return 0;
}

/* Run argv[0] (NULL or "-": standard input) with the arguments behind it. */
static int run_script(lua_State *L, char **argv)
{
    const char *path = argv && strcmp(argv[0], "-") != 0 ? argv[0] : NULL;
    bool bytecode;
    int status = rle_cli_load_file(L, path, &bytecode);
    int nargs = 0;
    if (status == 0 && argv) {
        while (argv[1 + nargs]) nargs++;
        luaL_checkstack(L, nargs + 4, "too many arguments to the script");
        for (int i = 1; i <= nargs; i++) lua_pushstring(L, argv[i]);
    }
    int code = run(L, status, nargs);
    return bytecode ? RLE_EXIT_BYTECODE : code;
}

/* LuaJIT opens it when it is first asked for. A state in which there was no memory for
 * all of that cannot be closed (2.1: the table of finalizers is missing), so it comes
 * first, when nothing else is there that would have to be closed. */
static void open_ffi(lua_State *L)
{
    lua_getglobal(L, "require");
    lua_pushliteral(L, "ffi");
    lua_call(L, 1, 0);
}

static int run_program(lua_State *L)
{
    rle_cli_program *p = lua_touserdata(L, 1);
    const rle_cli_options *o = &p->options;
    lua_settop(L, 0);
    if (o->no_environment) {
        lua_pushboolean(L, 1);
        lua_setfield(L, LUA_REGISTRYINDEX, "LUA_NOENV"); /* read by luaL_openlibs */
    }
    p->opening = true;
    lua_gc(L, LUA_GCSTOP, 0);
    luaL_openlibs(L);
    open_ffi(L);
    lua_gc(L, LUA_GCRESTART, -1);
    p->opening = false;
    /* Collect at one and a half times the live heap instead of twice: what dead handles hold
     * is more than Lua sees, and a smaller working set is the faster one. */
    lua_gc(L, LUA_GCSETPAUSE, 150);
    rle_cli_text_only(L);
    rle_cli_embed(L);
    if (rle_simulated())
        rle_cli_sim_open(L, o->seed);
    else
        rle_cli_interrupt_init(L);
    rle_cli_leave_on_exit(L);
    set_arg(L, p->argc, p->argv, o->script);
    set_program(L, p->argc, p->argv);
    if (o->memory_report) rle_cli_want_memory_report(L);

    bool has_script = o->script < p->argc;
    if (!o->no_environment && (p->code = run_init(L)) != 0) return 0;
    if ((p->code = run_options(L, p->argv, o->script)) != 0) return 0;
    if (has_script && (p->code = run_script(L, p->argv + o->script)) != 0) return 0;
    if (o->prompt) {
        rle_cli_prompt(L);
    } else if (!has_script && !o->execute && !o->version) {
        if (isatty(STDIN_FILENO)) {
            print_version();
            rle_cli_prompt(L);
        } else {
            p->code = run_script(L, NULL);
        }
    }
    return 0;
}

/* Run it, and report a failure; what lua_cpcall calls may run out of memory at once. */
static int run_protected(lua_State *L)
{
    rle_cli_program *p = lua_touserdata(L, 1);
    lua_pushcfunction(L, run_program);
    lua_pushlightuserdata(L, p);
    if (rle_cli_call(L, 1, 0) != 0) p->code = failed(L);
    return 0;
}

/* Lua's own memory, when tests order that it fails. */
typedef struct allocator {
    lua_Alloc f;
    void *ud;
} allocator;

static void *failing_alloc(void *ud, void *block, size_t before, size_t after)
{
    const allocator *own = ud;
    if (after > before && rle_fault_hits(RLE_FAULT_LUA)) return NULL;
    return own->f(own->ud, block, before, after);
}

static void share_faults(lua_State *L)
{
    static allocator own; /* for as long as the state */
    if (!rle_fault_left(RLE_FAULT_LUA)) return;
    own.f = lua_getallocf(L, &own.ud);
    lua_setallocf(L, failing_alloc, &own);
}

void rle_cli_run(lua_State *L, rle_cli_program *p)
{
    share_faults(L);
    if (lua_cpcall(L, run_protected, p) != 0) { /* not even the report could be made */
        fprintf(stderr, RLE_PROGRAM ": not enough memory\n");
        p->code = EX_OSERR;
    }
    rle_cli_leave(p->code);
}

void rle_cli_close(lua_State *L, const rle_cli_program *p)
{
    if (!p->opening) lua_close(L);
}

int main(int argc, char **argv)
{
    rle_fault_from_environment();
    rle_cli_program p = {
        .argc = argc, .argv = argv, .options = rle_cli_parse_options(argc, argv)};
    if (p.options.wrong) {
        const char *wrong = p.options.wrong;
        if (strcmp(wrong, "--help") == 0 || strcmp(wrong, "-h") == 0) {
            fputs(usage, stdout);
            return EXIT_SUCCESS;
        }
        if (strcmp(wrong, "--version") == 0) {
            print_version();
            print_gpus();
            return EXIT_SUCCESS;
        }
        if (wrong[1] == 'e' || wrong[1] == 'l')
            fprintf(stderr, RLE_PROGRAM ": '%s' needs an argument\n", wrong);
        else
            fprintf(stderr, RLE_PROGRAM ": unrecognized option '%s'\n", wrong);
        fprintf(stderr, "Try '" RLE_PROGRAM " --help'.\n");
        return EXIT_FAILURE;
    }
    if (!p.options.seed && (p.options.faults || p.options.sim_log)) {
        fprintf(stderr, RLE_PROGRAM ": %s is for a simulation: add --sim or --sim=seed\n",
                p.options.faults ? "--sim-faults" : "--sim-log");
        return EXIT_FAILURE;
    }
    if (p.options.version) print_version();
    if (p.options.seed) return rle_cli_simulate(&p);

    lua_State *L = luaL_newstate();
    if (!L) {
        fprintf(stderr, RLE_PROGRAM ": cannot create a Lua state: out of memory\n");
        return EX_OSERR;
    }
    rle_cli_run(L, &p);
    rle_cli_print_memory();
    rle_cli_close(L, &p);
    rle_cli_interrupt_fini();
    return p.code;
}
