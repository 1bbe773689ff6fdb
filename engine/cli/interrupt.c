/* interrupt.c - Ctrl-C.
 *
 * The first SIGINT sets rle_interrupted, which every entry into the engine looks at, and a
 * debug hook, which interpreted code runs into at its next instruction; whichever comes
 * first raises "interrupted" and takes the flag away. Compiled LuaJIT loops that never
 * enter the engine see neither, so a second SIGINT while the flag still stands ends the
 * process.
 *
 * Threads: SIGINT may be delivered to any thread; the handler passes it to the one that
 * owns the Lua state. lua_sethook is made for being called from a signal handler. */
#include "cli/cli_internal.h"

#include "base/context.h"
#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

static lua_State *state;
static pthread_t owner;
static int wake[2] = {-1, -1};
static volatile sig_atomic_t seen;

/* Error objects need the module, which a script may not have loaded. */
static void load_core(lua_State *L)
{
    lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
    lua_getfield(L, -1, "rlengine.core");
    if (lua_isnil(L, -1)) {
        lua_pushcfunction(L, luaopen_rlengine_core);
        lua_call(L, 0, 1);
        lua_setfield(L, -3, "rlengine.core");
    }
    lua_pop(L, 2);
}

static void hook(lua_State *L, lua_Debug *ar)
{
    (void)ar;
    lua_sethook(L, NULL, 0, 0);
    if (!rle_interrupted) return; /* somebody else has raised it */
    rle_interrupted = 0;
    luaL_checkstack(L, 8, "interrupt");
    load_core(L);
    rle_lua_push_error(L, RLE_CANCELLED, "interrupted", 0);
    lua_error(L);
}

static void on_signal(int signal_number)
{
    int saved = errno;
    if (!pthread_equal(pthread_self(), owner)) {
        pthread_kill(owner, signal_number);
    } else {
        if (signal_number == SIGINT) {
            if (rle_interrupted) _exit(RLE_EXIT_INTERRUPTED);
            seen = 1;
            rle_interrupt();
            lua_sethook(state, hook, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
        }
        if (wake[1] >= 0 && write(wake[1], "", 1) < 0) {
            /* full: it is readable anyway */
        }
    }
    errno = saved;
}

void rle_cli_interrupt_init(lua_State *L)
{
    state = L;
    owner = pthread_self();
    struct sigaction old;
    if (sigaction(SIGINT, NULL, &old) == 0 && old.sa_handler == SIG_IGN) return;
    size_t size;
    if (rle_handoff_take(&size)) {
        /* Ctrl-C reaches every process of the terminal; of those that rl.launch starts
         * only the launcher acts on it, and ends this one though its script has yet to
         * come there. */
        signal(SIGINT, SIG_IGN);
        return;
    }
    struct sigaction action = {.sa_handler = on_signal}; /* no SA_RESTART: reads return */
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

void rle_cli_interrupt_fini(void)
{
    signal(SIGINT, SIG_IGN);
    state = NULL;
}

bool rle_cli_interrupt_seen(void)
{
    return seen;
}

int rle_cli_wake_fd(void)
{
    if (wake[0] < 0 && pipe2(wake, O_NONBLOCK | O_CLOEXEC) == 0) {
        struct sigaction action = {.sa_handler = on_signal};
        sigemptyset(&action.sa_mask);
        sigaction(SIGWINCH, &action, NULL);
        sigaction(SIGCONT, &action, NULL);
    }
    return wake[0];
}

rle_signals rle_cli_take_signals(void)
{
    rle_signals got = {0};
    char drop[64];
    while (read(wake[0], drop, sizeof drop) > 0) got.other = true;
    got.interrupt = rle_interrupted;
    rle_interrupted = 0;
    return got;
}
