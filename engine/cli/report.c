/* report.c - what the program prints when a script fails.
 *
 *   rlengine: INVALID_ARGUMENT: unknown option "lrr"; did you mean "lr"?
 *     at train.lua:88
 *   stack traceback: ...
 *
 * The text is made where the error is raised, by the message handler, because only there
 * the stack still stands. Error objects bring their own traceback: that of the coroutine
 * (or of the other process) that failed. */
#include "cli/cli_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <sysexits.h>

#include "base/world.h"

static RLE_PER_PROCESS bool interrupted;
static RLE_PER_PROCESS int exit_code = EXIT_FAILURE;

/* The traceback on top loses what says nothing about the script: everything from the
 * prompt's own frames on, and the C frames at its end. Of a chunk typed at the prompt that
 * failed by itself, nothing is left: the message has its line. */
static void trim_traceback(lua_State *L)
{
    const char *text = lua_tostring(L, -1);
    size_t size = strlen(text);
    const char *prompt = strstr(text, "\n\trlengine/cli/");
    if (prompt) size = (size_t)(prompt - text);
    bool deep = !prompt;
    size_t kept = 0;
    for (size_t end = size; end > 0;) {
        size_t line = end;
        while (line > 0 && text[line - 1] != '\n') line--;
        if (line == 0) break; /* "stack traceback:" */
        bool c_frame = strncmp(text + line, "\t[C]: ", 6) == 0;
        if (!kept && !c_frame) kept = end;
        if (!c_frame && strncmp(text + line, "\tstdin:1: in main chunk", 23) != 0) deep = true;
        end = line - 1;
    }
    lua_pushlstring(L, text, deep ? kept : 0);
    lua_remove(L, -2);
}

/* Push what one line says about the error value at `idx`. */
static void push_summary(lua_State *L, int idx)
{
    if (lua_isstring(L, idx)) {
        lua_pushvalue(L, idx);
        return;
    }
    if (luaL_callmeta(L, idx, "__tostring")) {
        if (lua_isstring(L, -1)) return;
        lua_pop(L, 1);
    }
    lua_pushfstring(L, "(error object is a %s value)", luaL_typename(L, idx));
}

/* Push field `key` of the error object at 1; false (nothing pushed) unless a string. */
static bool push_field(lua_State *L, const char *key)
{
    lua_getfield(L, 1, key);
    if (lua_type(L, -1) == LUA_TSTRING && lua_rawlen(L, -1) > 0) return true;
    lua_pop(L, 1);
    return false;
}

/* "\n  at train.lua:88" behind the text on top, from the error object at 1. */
static void append_place(lua_State *L)
{
    if (!push_field(L, "where")) return;
    if (strncmp(lua_tostring(L, -1), "rlengine/cli/", 13) == 0) {
        lua_pop(L, 1);
        return;
    }
    lua_pushliteral(L, "\n  at ");
    lua_insert(L, -2);
    lua_concat(L, 3);
}

int rle_cli_handler(lua_State *L)
{
    lua_settop(L, 1);
    interrupted = false;
    if (lua_isnil(L, 1)) return 1;
    bool object = rle_lua_is_error(L, 1);
    exit_code = rle_lua_exit_code(L, 1);
    push_summary(L, 1);
    if (object) {
        if (push_field(L, "code"))
            interrupted = rle_cli_interrupt_seen() &&
                          strcmp(lua_tostring(L, -1), "CANCELLED") == 0;
        lua_settop(L, 2);
        append_place(L);
    }
    if (!object || !push_field(L, "traceback")) luaL_traceback(L, L, NULL, 1);
    trim_traceback(L);
    if (lua_rawlen(L, -1) > 0) {
        lua_pushliteral(L, "\n");
        lua_insert(L, -2);
        lua_concat(L, 3);
    } else {
        lua_pop(L, 1);
    }
    return 1;
}

int rle_cli_call(lua_State *L, int nargs, int nresults)
{
    int base = lua_gettop(L) - nargs;
    lua_pushcfunction(L, rle_cli_handler);
    lua_insert(L, base);
    exit_code = EXIT_FAILURE;
    int status = lua_pcall(L, nargs, nresults, base);
    if (status == LUA_ERRMEM) exit_code = EX_OSERR; /* no handler was called */
    lua_remove(L, base);
    return status;
}

void rle_cli_report(lua_State *L)
{
    if (!lua_isnil(L, -1)) {
        const char *text = lua_tostring(L, -1);
        fflush(stdout);
        fprintf(stderr, RLE_PROGRAM ": %s\n", text ? text : "(error object is no string)");
        fflush(stderr);
    }
    lua_pop(L, 1);
}

bool rle_cli_failed_by_interrupt(void)
{
    return interrupted;
}

int rle_cli_exit_code(void)
{
    return interrupted ? RLE_EXIT_INTERRUPTED : exit_code;
}
