/* rpc_door.h - for C tests of who is let in over TCP, and who is not answered. */
#ifndef RLE_TESTS_RPC_DOOR_H
#define RLE_TESTS_RPC_DOOR_H

#include <arpa/inet.h>
#include <netinet/in.h>

#include "rpc_pair.h"

/* `source`: the address of this machine to come from, or NULL. */
static inline raw tcp_connect(rle_rpc *server, const char *source)
{
    raw r = {.server = server, .incarnation = 4711};
    rle_address to;
    char list[RLE_REF_ADDRESSES][RLE_ADDRESS_MAX];
    assert_true(rle_rpc_own_addresses(server, list) > 0);
    assert_int_equal(rle_address_parse(list[0], &to), RLE_OK);
    r.fd = socket(to.sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (source) {
        struct sockaddr_in from = {.sin_family = AF_INET};
        assert_int_equal(inet_pton(AF_INET, source, &from.sin_addr), 1);
        assert_int_equal(bind(r.fd, (struct sockaddr *)&from, sizeof from), 0);
    }
    assert_int_equal(connect(r.fd, (struct sockaddr *)&to.sa, to.len), 0);
    return r;
}

/* A wrong proof from somebody who is gone before it is looked at. */
static inline void fail_and_go(rle_rpc *server, const char *source)
{
    static const uint8_t wrong[RLE_PROOF_SIZE];
    uint8_t bytes[2 * RLE_FRAME_HEADER + 512 + sizeof wrong];
    raw r = tcp_connect(server, source);
    rle_writer w;
    rle_writer_init(&w);
    raw_greeting(&w, &r, "x", 1, 1);
    uint32_t n = (uint32_t)w.len;
    assert_true(n <= 512);
    rle_frame hello = {.type = RLE_FRAME_HELLO, .payload = n, .values = n, .body = n};
    rle_frame auth = {.type = RLE_FRAME_AUTH,
                      .payload = sizeof wrong,
                      .values = sizeof wrong,
                      .body = sizeof wrong,
                      .credit = 1};
    rle_frame_encode(&hello, bytes);
    memcpy(bytes + RLE_FRAME_HEADER, w.data, n);
    rle_writer_fini(&w);
    rle_frame_encode(&auth, bytes + RLE_FRAME_HEADER + n);
    memcpy(bytes + 2 * RLE_FRAME_HEADER + n, wrong, sizeof wrong);
    n += (uint32_t)(2 * RLE_FRAME_HEADER + sizeof wrong);
    assert_int_equal(send(r.fd, bytes, n, MSG_NOSIGNAL), n);
    raw_close(&r);
    for (int i = 0; i < 5; i++) turn(server, NULL);
}

static inline uint64_t refused_by(rle_rpc *rpc)
{
    rle_rpc_counters c;
    rle_rpc_count(rpc, &c);
    return c.refused_peers;
}

static inline bool lets_in(rle_rpc *a, const rle_token *token)
{
    rle_rpc *b = worker("b", &(rle_rpc_options){.token = token});
    bool in = rle_peer_connected(b, link_to(b, a));
    rle_rpc_free(b);
    for (int i = 0; i < 3; i++) turn(a, NULL);
    return in;
}

/* A system without sock_diag and /proc tells no users apart. */
static inline bool users_are_told_apart(void)
{
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, "tcp://127.0.0.1:0", NULL), RLE_OK);
    raw r = tcp_connect(a, NULL);
    for (int i = 0; i < 5; i++) turn(a, NULL);
    uid_t uid;
    /* Of the other end, which is ours as well. */
    bool told = rle_socket_owner(r.fd, &uid) == RLE_OWNER_TOLD;
    if (told) assert_int_equal(uid, geteuid());
    close(r.fd);
    rle_rpc_free(a);
    if (!told) print_message("skipped: this system does not tell who owns a socket\n");
    return told;
}

#endif
