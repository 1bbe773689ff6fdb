/* options.h - the program's own options, without Lua. */
#ifndef RLE_CLI_OPTIONS_H
#define RLE_CLI_OPTIONS_H

#include <stdbool.h>

typedef struct rle_cli_options {
    int script; /* index in argv; argc when there is none */
    bool prompt, version, execute, no_environment, memory_report;
    const char *seed; /* of --sim: "" when it gives none, NULL without --sim */
    const char *faults, *sim_log; /* of --sim-faults=, --sim-log=; or NULL */
    const char *wrong; /* the argument that is no option, or lacks its value; in argv */
} rle_cli_options;

/* argv[argc] is NULL. Nothing is kept but `wrong`. */
rle_cli_options rle_cli_parse_options(int argc, char **argv);

/* The value of option argv[*i], glued to it or the next argument (then *i is that one);
 * NULL if missing. */
const char *rle_cli_option_value(char **argv, int *i);

#endif
