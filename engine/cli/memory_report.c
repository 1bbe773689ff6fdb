/* memory_report.c - `--memory-report`: what every device's memory was used for when the
 * script had ended, well or not, printed to standard error.
 *
 * It must be said before Lua closes its state, which frees every tensor. So the report
 * comes from the end of the program and from os.exit, whichever is first. */
#include "cli/cli_internal.h"

#include <stdio.h>

#include "base/mem.h"
#include "device/device.h"

static bool wanted;

void rle_cli_print_memory(void)
{
    if (!wanted) return;
    wanted = false;
    fflush(stdout);
    for (int i = 0; i < rle_device_count(); i++) {
        rle_device *dev = rle_device_at(i);
        rle_memory_stats stats;
        char *text;
        rle_device_memory(dev, &stats);
        if (!stats.allocations) continue;
        if (rle_device_report_text(dev, &text) == RLE_OK) {
            fputs(text, stderr);
            rle_free(text);
        } else {
            fprintf(stderr, "memory of %s: %s\n", dev->name, rle_message());
        }
    }
    fflush(stderr);
}

static int exit_after_report(lua_State *L)
{
    rle_cli_print_memory();
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, lua_gettop(L) - 1, 0);
    return 0;
}

void rle_cli_want_memory_report(lua_State *L)
{
    wanted = true;
    lua_getglobal(L, "os");
    lua_getfield(L, -1, "exit");
    lua_pushcclosure(L, exit_after_report, 1);
    lua_setfield(L, -2, "exit");
    lua_pop(L, 1);
}
