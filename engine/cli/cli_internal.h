/* cli_internal.h - what the files of the program `rlengine` share.
 *
 * The program owns one Lua state on the main thread. Nothing here is part of the library:
 * only this folder and base/log print, and only this folder decides exit codes. */
#ifndef RLE_CLI_INTERNAL_H
#define RLE_CLI_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

#include "lua/lua_module.h"

#define RLE_PROGRAM "rlengine"

/* Registry field for rl.launch, which starts the same program again: a table with `argv`
 * (from 0); when the script came on standard input, its text as `source`; `prompt` (true)
 * once the interactive prompt has begun. */
#define RLE_CLI_PROGRAM "rlengine.program"

/* Exit codes beyond Lua's own 0 and 1. */
enum {
    RLE_EXIT_BYTECODE = 65,     /* EX_DATAERR: the script is not source text */
    RLE_EXIT_INTERRUPTED = 130, /* as a shell reports death by SIGINT */
};

/* ---- the Lua files inside the program: embed.c, generated embedded_lua.c ---- */

typedef struct rle_embedded_file {
    const char *name; /* "rlengine/nn.lua" */
    const char *text, *end;
} rle_embedded_file;

extern const rle_embedded_file rle_embedded_files[]; /* ends with a NULL name */

/* Make `rlengine.core` and the embedded files what `require` finds first. */
void rle_cli_embed(lua_State *L);

/* ---- source text only: text_only.c ---- */

/* Replace load, loadstring, loadfile, dofile and require's search for Lua files by ones
 * that refuse bytecode. Call before rle_cli_embed. */
void rle_cli_text_only(lua_State *L);

/* Load a file (NULL: all of standard input, named "=stdin", kept as `source`) and push the
 * function, or push the message and return the error. *bytecode says whether that was why. */
int rle_cli_load_file(lua_State *L, const char *path, bool *bytecode);

/* ---- --memory-report: memory_report.c ---- */

/* From now on os.exit prints the memory of every device that was used, once. */
void rle_cli_want_memory_report(lua_State *L);
/* Print it, if it is wanted and has not been printed. */
void rle_cli_print_memory(void);

/* ---- the end: leave.c ---- */

/* From now on os.exit takes leave of other workers. */
void rle_cli_leave_on_exit(lua_State *L);
/* The program is about to end with that exit code: when that is 0, take leave of them. */
void rle_cli_leave(int code);

/* ---- failures: report.c ---- */

/* Message handler for lua_pcall: turns an error value into the text that is printed, with
 * a traceback; nil stays nil. */
int rle_cli_handler(lua_State *L);

/* Call the function below `nargs` arguments under that handler. On failure the text (or
 * nil) is left on the stack. */
int rle_cli_call(lua_State *L, int nargs, int nresults);

/* Print "rlengine: <text>" to standard error and pop it; nil prints nothing, as in lua. */
void rle_cli_report(lua_State *L);

/* True when the last failure that went through the handler came from Ctrl-C. */
bool rle_cli_failed_by_interrupt(void);

/* What the program ends with after that failure, see rle_lua_exit_code. */
int rle_cli_exit_code(void);

/* ---- Ctrl-C: interrupt.c ---- */

/* Handle SIGINT from now on, unless the process was started with it ignored. */
void rle_cli_interrupt_init(lua_State *L);

/* The Lua state is gone: Ctrl-C means nothing any more, the process is about to exit. */
void rle_cli_interrupt_fini(void);

/* True once SIGINT has arrived. */
bool rle_cli_interrupt_seen(void);

/* Readable after a signal arrived: the prompt waits on it beside its input. */
int rle_cli_wake_fd(void);
/* Empty it. Ctrl-C, if it was among the signals, is forgotten. */
typedef struct rle_signals {
    bool interrupt, other;
} rle_signals;
rle_signals rle_cli_take_signals(void);

/* ---- the prompt: repl.c, edit.c, prompt.lua ---- */

/* Read, run and print until the end of input. */
void rle_cli_prompt(lua_State *L);

typedef enum { RLE_LINE, RLE_LINE_CANCELLED, RLE_LINE_END } rle_line_result;

typedef enum {
    RLE_WAIT_INPUT,     /* standard input is readable, or at its end */
    RLE_WAIT_INTERRUPT, /* Ctrl-C, now forgotten */
    RLE_WAIT_SIGNAL,    /* the window changed its size, or the process goes on after a stop */
} rle_wait_result;

/* Wait for standard input, serving remote calls meanwhile. */
rle_wait_result rle_cli_wait_input(lua_State *L);

/* Columns of the terminal, 80 when unknown. */
int rle_cli_columns(void);

/* Line editing with history and completion (edit.c), for a terminal. `prompt_table` is
 * the stack index of prompt.lua's table. False when the terminal cannot do it. */
bool rle_cli_edit_open(lua_State *L, int prompt_table);
rle_line_result rle_cli_edit_line(const char *prompt, const char **line);
void rle_cli_edit_close(void);

#endif
