/* repl.c - the interactive prompt: waiting for input, and the loop.
 *
 * What a line means, how results look and what Tab offers is prompt.lua's business; line
 * editing is edit.c's. While the prompt waits it serves remote calls: it waits in the rpc
 * layer's loop if there is one, else in poll(2). It waits on one epoll descriptor that
 * stands for standard input and for the pipe that signal handlers write to, so no Ctrl-C
 * is lost between looking and sleeping. */
#include "cli/cli_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

static int wait_fd = -1;

static void wait_open(void)
{
    wait_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(wait_fd, EPOLL_CTL_ADD, rle_cli_wake_fd(), &event);
    /* A regular file is refused: it is always readable, and nothing needs to wait. */
    if (epoll_ctl(wait_fd, EPOLL_CTL_ADD, STDIN_FILENO, &event) != 0) {
        close(wait_fd);
        wait_fd = -1;
    }
}

static bool stdin_ready(void)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

/* The rpc layer's wait, in protected mode: it runs handlers. */
static int pump(lua_State *L)
{
    lua_pushboolean(L, rle_lua_rpc_pump(L, wait_fd));
    return 1;
}

/* Wait until wait_fd is readable or a signal has come. False: the rpc layer noticed
 * Ctrl-C before us. */
static bool wait_once(lua_State *L)
{
    lua_pushcfunction(L, pump);
    if (rle_cli_call(L, 0, 1) != 0) {
        bool interrupted = rle_cli_failed_by_interrupt();
        if (interrupted)
            lua_pop(L, 1);
        else
            rle_cli_report(L);
        return !interrupted;
    }
    bool served = lua_toboolean(L, -1);
    lua_pop(L, 1);
    if (served) return true;
    struct pollfd p = {.fd = wait_fd, .events = POLLIN};
    poll(&p, 1, -1); /* EINTR: the caller looks */
    return true;
}

rle_wait_result rle_cli_wait_input(lua_State *L)
{
    for (;;) {
        rle_signals got = rle_cli_take_signals();
        if (got.interrupt) return RLE_WAIT_INTERRUPT;
        if (got.other) return RLE_WAIT_SIGNAL;
        if (wait_fd < 0 || stdin_ready()) return RLE_WAIT_INPUT;
        if (!wait_once(L)) return RLE_WAIT_INTERRUPT;
    }
}

int rle_cli_columns(void)
{
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    return 80;
}

/* Lines without editing, for input that is no terminal. Own buffer: what stdio would
 * have read ahead could not be waited for. */
static rle_line_result plain_line(lua_State *L, const char *prompt, const char **line)
{
    static char buffer[1 << 16];
    static size_t start, end;
    fputs(prompt, stdout);
    fflush(stdout);
    for (;;) {
        char *newline = memchr(buffer + start, '\n', end - start);
        if (newline || (end - start == sizeof buffer - 1)) {
            size_t stop = newline ? (size_t)(newline - buffer) : end;
            buffer[stop] = '\0';
            *line = buffer + start;
            start = newline ? stop + 1 : end;
            return RLE_LINE;
        }
        memmove(buffer, buffer + start, end - start);
        end -= start;
        start = 0;
        rle_wait_result got = rle_cli_wait_input(L);
        if (got == RLE_WAIT_INTERRUPT) {
            end = 0;
            return RLE_LINE_CANCELLED;
        }
        if (got == RLE_WAIT_SIGNAL) continue;
        ssize_t n = read(STDIN_FILENO, buffer + end, sizeof buffer - 1 - end);
        if (n < 0 && errno == EINTR) continue;
        if (n > 0) {
            end += (size_t)n;
        } else if (end > 0) { /* a last line without its newline */
            buffer[end] = '\0';
            *line = buffer;
            start = end = 0;
            return RLE_LINE;
        } else {
            return RLE_LINE_END;
        }
    }
}

void rle_cli_prompt(lua_State *L)
{
    int top = lua_gettop(L);
    lua_getglobal(L, "require");
    lua_pushliteral(L, "rlengine.cli.prompt");
    lua_call(L, 1, 1);
    int prompt_table = top + 1;
    lua_getfield(L, LUA_REGISTRYINDEX, RLE_CLI_PROGRAM);
    lua_pushboolean(L, 1);
    lua_setfield(L, -2, "prompt");
    lua_pop(L, 1);
    wait_open();

    bool edit = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) &&
                rle_cli_edit_open(L, prompt_table);
    lua_getfield(L, prompt_table, "start");
    if (rle_cli_call(L, 0, 0) != 0) rle_cli_report(L);

    bool more = false;
    for (;;) {
        const char *line, *prompt = more ? ">> " : "> ";
        rle_line_result got =
            edit ? rle_cli_edit_line(prompt, &line) : plain_line(L, prompt, &line);
        if (got == RLE_LINE_END) break;
        lua_getfield(L, prompt_table, got == RLE_LINE ? "feed" : "cancel");
        if (got == RLE_LINE) {
            lua_pushstring(L, line);
            lua_pushcfunction(L, rle_cli_handler);
        } else {
            fputs("^C\n", stdout);
        }
        if (rle_cli_call(L, got == RLE_LINE ? 2 : 0, 1) != 0) {
            rle_cli_report(L);
            more = false;
        } else {
            more = lua_toboolean(L, -1);
            lua_pop(L, 1);
        }
        fflush(stdout);
        rle_cli_take_signals();
    }
    fputs("\n", stdout);
    if (edit) rle_cli_edit_close();
    if (wait_fd >= 0) close(wait_fd);
    wait_fd = -1;
    lua_settop(L, top);
}
