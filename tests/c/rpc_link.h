/* rpc_link.h - for C tests of connections that break and are made again. */
#ifndef RLE_TESTS_RPC_LINK_H
#define RLE_TESTS_RPC_LINK_H

#include "rpc_pair.h"
#include "shifted_clock.h"

/* Connect as rle_rpc_connect does, whose other side is us: `other` is turned meanwhile.
 */
static inline rle_peer *join(rle_rpc *from, const char *address, rle_rpc *other)
{
    rle_address to;
    rle_status s;
    rle_connect_result result = {0};
    assert_int_equal(rle_address_parse(address, &to), RLE_OK);
    rle_link *link = rle_link_new(from, &to, &s);
    rle_rpc_enter(from);
    assert_int_equal(rle_connect_begin(from, &to, &result, NULL, NULL), RLE_OK);
    rle_rpc_leave(from);
    for (int i = 0; i < 200 && !result.done; i++) turn(from, other);
    assert_int_equal(result.status, RLE_OK);
    rle_rpc_enter(from);
    rle_link_attach(link, result.peer);
    rle_rpc_leave(from);
    for (int i = 0; i < 5; i++) turn(from, other);
    return result.peer;
}

static inline rle_rpc *listener(const rle_rpc_options *o)
{
    rle_rpc *a = worker("a", o);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    return a;
}

/* Close the connection of `rpc` to that worker without a word. */
static inline void cut(rle_rpc *rpc, rle_peer *peer)
{
    rle_rpc_enter(rpc);
    rle_conn_close(peer->conn, "cut by a test", true);
    rle_rpc_leave(rpc);
}

static inline bool until_connected(rle_rpc *rpc, rle_peer *peer, bool want,
                                   rle_rpc *other)
{
    for (int i = 0; i < 5000 && rle_peer_connected(rpc, peer) != want; i++) {
        turn(rpc, other);
        usleep(1000);
    }
    return rle_peer_connected(rpc, peer) == want;
}

static inline rle_link_state state_of(rle_rpc *rpc, rle_peer *peer)
{
    rle_status code;
    return rle_peer_link(rpc, peer, &code);
}

static inline int times_logged(const char *part)
{
    int n = 0;
    for (int i = 0; i < test_log_count && i < 64; i++)
        n += strstr(test_log[i], part) != NULL;
    return n;
}

static inline void expect_error(rle_rpc *rpc, rle_future *f, rle_status code,
                                rle_outcome outcome, const char *text)
{
    rle_wire_error e;
    assert_int_equal(rle_future_status(rpc, f), RLE_FUTURE_FAILED);
    assert_string_equal(error_of(f, &e), text);
    assert_int_equal(e.code, code);
    assert_int_equal(e.outcome, outcome);
    rle_future_release(rpc, f);
}

/* A call on an object, of which only that connection knows. */
static inline rle_future *call_object(rle_rpc *rpc, rle_peer *to, uint64_t session)
{
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "f", 1);
    rle_encode_integer(&e, 1);
    rle_call_spec spec = {.peer = to, .method = "f", .session = session};
    rle_future *f = NULL;
    assert_int_equal(rle_rpc_call(rpc, &spec, &e, &f), RLE_OK);
    rle_encoder_fini(&e);
    return f;
}

#endif
