/* leave.c - a program that ends well takes leave of the workers it is connected to, though its
 * script has not called rpc.shutdown.
 *
 * They then know that it is not lost: nobody looks for it, and who only served it ends too. A
 * program that fails, is interrupted or killed says nothing, so it is looked for, and finds its
 * peers again when it is started anew. */
#include "cli/cli_internal.h"

#include <stdlib.h>

/* os.exit of before as upvalue */
static int exit_with_leave(lua_State *L)
{
    bool well = lua_isboolean(L, 1) ? lua_toboolean(L, 1)
                                    : luaL_optinteger(L, 1, EXIT_SUCCESS) == EXIT_SUCCESS;
    rle_cli_leave(well ? EXIT_SUCCESS : EXIT_FAILURE);
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, lua_gettop(L) - 1, 0);
    return 0;
}

void rle_cli_leave_on_exit(lua_State *L)
{
    lua_getglobal(L, "os");
    lua_getfield(L, -1, "exit");
    lua_pushcclosure(L, exit_with_leave, 1);
    lua_setfield(L, -2, "exit");
    lua_pop(L, 1);
}

void rle_cli_leave(int code)
{
    if (code == EXIT_SUCCESS) rle_lua_rpc_leave();
}
