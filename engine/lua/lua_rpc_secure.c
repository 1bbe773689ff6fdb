/* lua_rpc_secure.c - options of rpc.init about who may talk: the token, and TLS. */
#include "lua/lua_rpc.h"

void rle_lua_rpc_token(lua_State *L, rle_token *token)
{
    int given = 0;
    static const char *const ways[] = {"token", "token_fd", "token_file"};
    for (int i = 0; i < 3; i++) {
        lua_getfield(L, 1, ways[i]);
        given += !lua_isnil(L, -1);
        lua_pop(L, 1);
    }
    if (given > 1)
        rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                     "give one of token, token_fd and token_file, not several");
    const char *bytes = rle_lua_opt_string(L, 1, "token", NULL);
    const char *file = rle_lua_opt_string(L, 1, "token_file", NULL);
    int64_t fd = rle_lua_opt_integer(L, 1, "token_fd", -1);
    if (bytes) {
        lua_getfield(L, 1, "token");
        rle_lua_check(L, rle_token_from_bytes(bytes, lua_rawlen(L, -1), "the option token",
                                              token));
        lua_pop(L, 1);
    } else if (file) {
        rle_lua_check(L, rle_token_from_file(file, token));
    } else if (fd >= 0) {
        rle_lua_check(L, rle_token_from_fd((int)fd, token));
    } else {
        rle_lua_check(L, rle_token_default(token));
    }
}

static const char *const tls_options[] = {"psk", "cert", "key", "ca", "name", "unix", NULL};

/* The strings stay the table's. */
const rle_tls_options *rle_lua_rpc_tls(lua_State *L, int idx, rle_tls_options *out)
{
    *out = (rle_tls_options){0};
    lua_getfield(L, idx, "tls");
    int at = lua_gettop(L);
    bool given = lua_toboolean(L, at);
    if (given && lua_type(L, at) == LUA_TSTRING && strcmp(lua_tostring(L, at), "psk") == 0) {
        out->psk = true;
    } else if (given && lua_istable(L, at)) {
        rle_lua_options(L, at, tls_options);
        out->psk = rle_lua_opt_boolean(L, at, "psk", false);
        out->unix_too = rle_lua_opt_boolean(L, at, "unix", false);
        out->cert = rle_lua_opt_string(L, at, "cert", NULL);
        out->key = rle_lua_opt_string(L, at, "key", NULL);
        out->ca = rle_lua_opt_string(L, at, "ca", NULL);
        out->name = rle_lua_opt_string(L, at, "name", NULL);
    } else if (given) {
        rle_lua_fail(L, RLE_INVALID_ARGUMENT,
                     "option \"tls\" must be \"psk\", for a key made from the token, or a table "
                     "{cert = file, key = file, ca = file}");
    }
    lua_pop(L, 1);
    return given ? out : NULL;
}
