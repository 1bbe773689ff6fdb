/* program.h - the program's own state: how it was started, and running the script. */
#ifndef RLE_CLI_PROGRAM_H
#define RLE_CLI_PROGRAM_H

#include "cli/cli_internal.h"
#include "cli/options.h"

typedef struct rle_cli_program {
    int argc;
    char **argv;
    rle_cli_options options;
    int code;     /* to exit with */
    bool opening; /* Lua's libraries are being opened, or could not be */
} rle_cli_program;

/* Run the script (or the prompt) in a fresh state and report a failure; sets p->code. */
void rle_cli_run(lua_State *L, rle_cli_program *p);
/* Close the state afterwards. */
void rle_cli_close(lua_State *L, const rle_cli_program *p);

/* ---- --sim: sim.c ---- */

/* Run it in a simulated world. Returns the exit code. */
int rle_cli_simulate(rle_cli_program *p);
/* Give a state in a simulation its clocks, exit and the module `rlengine.sim`. */
void rle_cli_sim_open(lua_State *L, const char *seed);

#endif
