/* options.c - what the words in front of the script mean. */
#include "cli/options.h"

#include <stddef.h>
#include <string.h>

const char *rle_cli_option_value(char **argv, int *i)
{
    return argv[*i][2] ? argv[*i] + 2 : argv[*i + 1] ? argv[++*i] : NULL;
}

/* What follows "--sim"; false: no option. */
static bool simulation(const char *rest, rle_cli_options *o)
{
    if (!*rest)
        o->seed = "";
    else if (*rest == '=' && rest[1])
        o->seed = rest + 1;
    else if (strncmp(rest, "-faults=", 8) == 0)
        o->faults = rest + 8;
    else if (strncmp(rest, "-log=", 5) == 0)
        o->sim_log = rest + 5;
    else
        return false;
    return true;
}

rle_cli_options rle_cli_parse_options(int argc, char **argv)
{
    rle_cli_options o = {.script = argc};
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (a[0] != '-' || a[1] == '\0') {
            o.script = i;
            break;
        }
        if (strcmp(a, "--") == 0) {
            o.script = i + 1 < argc ? i + 1 : argc;
            break;
        }
        if (strcmp(a, "--memory-report") == 0) {
            o.memory_report = true;
            continue;
        }
        if (strncmp(a, "--sim", 5) == 0) {
            if (simulation(a + 5, &o)) continue;
            o.wrong = a;
            break;
        }
        bool glued = a[2] != '\0';
        if (a[1] == 'e' || a[1] == 'l') {
            if (!rle_cli_option_value(argv, &i)) o.wrong = a;
            o.execute |= a[1] == 'e';
        } else if (!glued && a[1] == 'i') {
            o.prompt = o.version = true;
        } else if (!glued && a[1] == 'v') {
            o.version = true;
        } else if (!glued && a[1] == 'E') {
            o.no_environment = true;
        } else {
            o.wrong = a;
        }
        if (o.wrong) break;
    }
    return o;
}
