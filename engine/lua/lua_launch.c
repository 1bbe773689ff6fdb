/* lua_launch.c - what lua/rlengine/launch.lua is built on: the group of processes, the
 * handoff a started process gets, private folders and random tokens.
 *
 * In a process that rl.launch started, opening this layer already takes the handoff out of
 * the environment, makes standard output line-buffered (its reader may be a pipe, and what a
 * script printed must not be lost when it dies) and names the process for `ps` and the log. */
#include "lua/lua_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/process.h"
#include "base/supervisor.h"
#include "base/world.h"
#include "rpc/sim.h"

/* ---- a started process ---- */

static RLE_PER_PROCESS volatile sig_atomic_t stop_requested;

static void on_stop(int signal)
{
    (void)signal;
    stop_requested = 1;
    rle_interrupt();
    rle_log_set_level(RLE_LOG_ERROR); /* that the others end too is no news */
}

/* launch.handoff() -> string, or nil when rl.launch did not start this process. */
static int launch_handoff(lua_State *L)
{
    size_t size;
    const char *bytes = rle_handoff_take(&size);
    if (bytes)
        lua_pushlstring(L, bytes, size);
    else
        lua_pushnil(L);
    return 1;
}

/* launch.name(name): shown by `ps -o comm`, `top` and in log lines. */
static int launch_name(lua_State *L)
{
    const char *name = luaL_checkstring(L, 1);
    rle_log_set_name(name);
    if (rle_simulated()) return 0;
    prctl(PR_SET_NAME, name); /* the kernel cuts it at 15 bytes */
    return 0;
}

/* launch.obey(): from now on the launcher decides when this process ends. Ctrl-C reaches
 * every process of the terminal; only the launcher acts on it. SIGTERM interrupts the script
 * at its next call into the engine (CANCELLED). */
static int launch_obey(lua_State *L)
{
    (void)L;
    if (rle_simulated()) {
        rle_sim_on_term(on_stop);
        return 0;
    }
    struct sigaction ignore = {.sa_handler = SIG_IGN}, stop = {.sa_handler = on_stop};
    sigemptyset(&ignore.sa_mask);
    sigemptyset(&stop.sa_mask);
    sigaction(SIGINT, &ignore, NULL);
    sigaction(SIGTERM, &stop, NULL); /* no SA_RESTART: what waits is to notice */
    return 0;
}

static int launch_stop_requested(lua_State *L)
{
    lua_pushboolean(L, stop_requested);
    return 1;
}

/* launch.die(signal): end as if the signal had never been caught, so that the parent sees
 * the true reason. */
static int launch_die(lua_State *L)
{
    int number = (int)luaL_checkinteger(L, 1);
    fflush(NULL);
    if (rle_simulated()) rle_sim_exit(0, number, false);
    signal(number, SIG_DFL);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    raise(number);
    return 0;
}

/* ---- the launcher ---- */

/* Bytes of /proc/self/cmdline, at most `size`; -1 with errno set. */
static ssize_t read_command(char *bytes, size_t size)
{
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    size_t used = 0;
    ssize_t n;
    while (used < size && (n = read(fd, bytes + used, size - used)) != 0) {
        if (n > 0) used += (size_t)n;
        if (n < 0 && errno != EINTR) break;
    }
    close(fd);
    return (ssize_t)used;
}

/* Where the program `rlengine` says how it was started: `argv`, `source` (the script, when
 * it came on standard input), `prompt` (true once the interactive prompt has begun). */
#define PROGRAM_FIELD "rlengine.program"

/* launch.program() -> {command = words this process was started with, source, prompt}. */
static int launch_program(lua_State *L)
{
    lua_settop(L, 0);
    lua_newtable(L);
    lua_getfield(L, LUA_REGISTRYINDEX, PROGRAM_FIELD);
    if (lua_istable(L, 2)) {
        lua_getfield(L, 2, "source");
        lua_setfield(L, 1, "source");
        lua_getfield(L, 2, "prompt");
        lua_setfield(L, 1, "prompt");
    }
    char *bytes;
    ssize_t size, room = 4096;
    do {
        room *= 2;
        lua_settop(L, 1);
        bytes = lua_newuserdata(L, (size_t)room + 1);
        size = read_command(bytes, (size_t)room);
    } while (size == room);
    if (size <= 0)
        return rle_lua_fail(L, RLE_UNAVAILABLE, "cannot read /proc/self/cmdline: %s",
                            strerror(errno));
    bytes[size] = 0;
    lua_newtable(L);
    int count = 0;
    for (ssize_t at = 0; at < size; at += (ssize_t)strlen(bytes + at) + 1) {
        lua_pushstring(L, bytes + at);
        lua_rawseti(L, -2, ++count);
    }
    lua_setfield(L, 1, "command");
    lua_settop(L, 1);
    return 1;
}

/* launch.token() -> 32 random bytes. */
static int launch_token(lua_State *L)
{
    char bytes[32];
    rle_lua_check(L, rle_entropy(bytes, sizeof bytes));
    lua_pushlstring(L, bytes, sizeof bytes);
    return 1;
}

/* launch.folder() -> path, lock: a folder only this user can enter. */
static int launch_folder(lua_State *L)
{
    static RLE_PER_PROCESS int simulated;
    char path[108];
    int lock = -1;
    if (rle_simulated())
        snprintf(path, sizeof path, "/sim/%d", ++simulated);
    else
        rle_lua_check(L, rle_private_folder(path, sizeof path, &lock));
    lua_pushstring(L, path);
    lua_pushinteger(L, lock);
    return 2;
}

static int launch_remove_folder(lua_State *L)
{
    if (rle_simulated()) return 0;
    rle_private_folder_remove(luaL_checkstring(L, 1), (int)luaL_checkinteger(L, 2));
    return 0;
}

/* launch.mark(path): make an empty file that says that this process came this far. */
static int launch_mark(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1);
    if (rle_simulated()) {
        rle_world_simulated->mark(path);
        if (strstr(path, ".joined")) rle_sim_killable(true);
        return 0;
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return rle_lua_fail(L, RLE_UNAVAILABLE, "cannot write %s: %s", path, strerror(errno));
    close(fd);
    return 0;
}

static int launch_marked(lua_State *L)
{
    lua_pushboolean(L, rle_is_there(luaL_checkstring(L, 1)));
    return 1;
}

/* launch.ask_kill(requests, name, reason): the launcher kills that observer. */
static int launch_ask_kill(lua_State *L)
{
    rle_lua_check(L, rle_group_ask_kill(luaL_checkstring(L, 1), luaL_checkstring(L, 2),
                                        luaL_checkstring(L, 3)));
    return 0;
}

/* launch.log(text): a line in the log. */
static int launch_log(lua_State *L)
{
    rle_log(RLE_LOG_WARN, "%s", luaL_checkstring(L, 1));
    return 0;
}

/* launch.usage() -> {descriptors, threads, resident = bytes} of this process. */
static int launch_usage(lua_State *L)
{
    rle_usage usage;
    rle_lua_check(L, rle_process_usage(&usage));
    lua_createtable(L, 0, 3);
    lua_pushinteger(L, usage.descriptors);
    lua_setfield(L, -2, "descriptors");
    lua_pushinteger(L, usage.threads);
    lua_setfield(L, -2, "threads");
    lua_pushnumber(L, (lua_Number)usage.resident);
    lua_setfield(L, -2, "resident");
    return 1;
}

/* launch.pid() -> this process's number. */
static int launch_pid(lua_State *L)
{
    lua_pushinteger(L, rle_process_number());
    return 1;
}

/* Strings of the table at `idx` as a NULL-ended array in a userdata left on the stack. The
 * table keeps the strings alive. */
static const char **string_list(lua_State *L, int idx)
{
    int n = (int)lua_rawlen(L, idx);
    const char **list = lua_newuserdata(L, ((size_t)n + 1) * sizeof *list);
    for (int i = 0; i < n; i++) {
        lua_rawgeti(L, idx, i + 1);
        list[i] = luaL_checkstring(L, -1);
        lua_pop(L, 1);
    }
    list[n] = NULL;
    return list;
}

/* Fields of the member table on top, which stays there and keeps the strings alive. */
static rle_member member_at_top(lua_State *L)
{
    int t = lua_gettop(L);
    rle_member m = {
        .name = rle_lua_opt_string(L, t, "name", ""),
        .role = rle_lua_opt_string(L, t, "role", "process"),
        .primary = rle_lua_opt_boolean(L, t, "primary", false),
        .prefix = rle_lua_opt_boolean(L, t, "prefix", false),
        .keep_stdin = rle_lua_opt_boolean(L, t, "keep_stdin", false),
        .team = (int)rle_lua_opt_integer(L, t, "team", 0),
        .joined = rle_lua_opt_string(L, t, "joined", NULL),
    };
    lua_getfield(L, t, "handoff");
    m.handoff = lua_tolstring(L, -1, &m.handoff_size);
    lua_pop(L, 1);
    return m;
}

/* launch.run{command = words, members = {{name, role, handoff, primary, prefix,
 * keep_stdin, team, joined}}, source = text or nil, grace = seconds, secondaries_finish =
 * bool, restarts = how many within `within` seconds, `backoff` seconds later, requests =
 *            path of a pipe to be asked at}
 *   -> {exit_code, message, failed = index or nil, signal = number or nil} */
static int launch_run(lua_State *L)
{
    rle_lua_enter(L);
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    rle_group group = {
        .grace_ns = (int64_t)(rle_lua_opt_number(L, 1, "grace", 0.6) * 1e9),
        .secondaries_finish = rle_lua_opt_boolean(L, 1, "secondaries_finish", false),
        .restarts = {.max = (int)rle_lua_opt_integer(L, 1, "restarts", 0),
                     .within = (int64_t)(rle_lua_opt_number(L, 1, "within", 60) * 1e9),
                     .backoff =
                         (int64_t)(rle_lua_opt_number(L, 1, "backoff", 0.5) * 1e9)},
        .requests = rle_lua_opt_string(L, 1, "requests", NULL),
    };
    lua_getfield(L, 1, "source");
    if (!lua_isnil(L, -1)) group.source = luaL_checklstring(L, -1, &group.source_size);
    lua_getfield(L, 1, "command");
    luaL_checktype(L, -1, LUA_TTABLE);
    group.argv = string_list(L, lua_gettop(L));
    lua_getfield(L, 1, "members");
    luaL_checktype(L, -1, LUA_TTABLE);
    int list = lua_gettop(L);
    group.count = (int)lua_rawlen(L, list);
    rle_member *members = lua_newuserdata(L, ((size_t)group.count + 1) * sizeof *members);
    for (int i = 0; i < group.count; i++) {
        lua_rawgeti(L, list, i + 1);
        members[i] = member_at_top(L);
        lua_pop(L, 1);
    }
    group.members = members;

    fflush(NULL); /* before others write to the same place */
    rle_group_result result;
    rle_lua_check(L, rle_group_run(&group, &result));
    lua_createtable(L, 0, 4);
    lua_pushinteger(L, result.exit_code);
    lua_setfield(L, -2, "exit_code");
    lua_pushstring(L, result.message);
    lua_setfield(L, -2, "message");
    if (result.failed >= 0) {
        lua_pushinteger(L, result.failed + 1);
        lua_setfield(L, -2, "failed");
    }
    if (result.signal) {
        lua_pushinteger(L, result.signal);
        lua_setfield(L, -2, "signal");
    }
    return 1;
}

static const luaL_Reg launch_functions[] = {
    {"handoff", launch_handoff},
    {"name", launch_name},
    {"obey", launch_obey},
    {"stop_requested", launch_stop_requested},
    {"die", launch_die},
    {"program", launch_program},
    {"token", launch_token},
    {"folder", launch_folder},
    {"remove_folder", launch_remove_folder},
    {"mark", launch_mark},
    {"marked", launch_marked},
    {"ask_kill", launch_ask_kill},
    {"log", launch_log},
    {"usage", launch_usage},
    {"pid", launch_pid},
    {"run", launch_run},
    {NULL, NULL},
};

void rle_lua_open_launch(lua_State *L)
{
    size_t size;
    if (rle_handoff_take(&size)) setvbuf(stdout, NULL, _IOLBF, 0);
    lua_newtable(L);
    rle_lua_setfuncs(L, launch_functions);
}
