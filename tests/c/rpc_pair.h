/* rpc_pair.h - two workers in one process, their loops turned by hand, for the C tests; and
 * a client made of a bare socket, which can send what no worker would. */
#ifndef RLE_TESTS_RPC_PAIR_H
#define RLE_TESTS_RPC_PAIR_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "rpc/frame.h"
#include "rpc/rpc.h"
#include "rpc/rpc_internal.h"
#include "rpc_greeting.h"

static rle_token test_token;
static char test_folder[64], test_address[128];

/* ---- log lines ---- */

static char test_log[64][512];
static _Atomic int test_log_count; /* grows when the line is there: guards write too */
static pthread_mutex_t test_log_lock = PTHREAD_MUTEX_INITIALIZER;

static inline void keep_line(void *self, rle_log_level level, const char *line)
{
    (void)self;
    if (level < RLE_LOG_INFO) return;
    pthread_mutex_lock(&test_log_lock);
    snprintf(test_log[test_log_count % 64], 512, "%s", line);
    test_log_count++;
    pthread_mutex_unlock(&test_log_lock);
}

static inline bool logged(const char *part)
{
    bool found = false;
    pthread_mutex_lock(&test_log_lock);
    for (int i = 0; i < test_log_count && i < 64 && !found; i++)
        found = strstr(test_log[i], part) != NULL;
    pthread_mutex_unlock(&test_log_lock);
    return found;
}

static inline int pair_setup(void **state)
{
    (void)state;
    snprintf(test_folder, sizeof test_folder, "/tmp/rlengine-test-XXXXXX");
    if (!mkdtemp(test_folder)) return -1;
    snprintf(test_address, sizeof test_address, "unix:%s/a.sock", test_folder);
    test_log_count = 0;
    rle_log_set_sink(keep_line, NULL);
    return rle_token_from_bytes("0123456789abcdef0123456789abcdef", 32, "a test", &test_token);
}

static inline int pair_teardown(void **state)
{
    (void)state;
    rle_log_set_sink(NULL, NULL);
    return rmdir(test_folder); /* fails when a socket was left behind */
}

static inline size_t open_fds(void)
{
    size_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* ---- workers ---- */

static inline rle_rpc *worker(const char *name, const rle_rpc_options *more)
{
    rle_rpc_options o = more ? *more : (rle_rpc_options){0};
    o.name = name;
    if (!o.token) o.token = &test_token;
    o.no_guard = true;
    rle_rpc *rpc = NULL;
    assert_int_equal(rle_rpc_new(&o, &rpc), RLE_OK);
    return rpc;
}

static inline void turn(rle_rpc *a, rle_rpc *b)
{
    if (a) rle_rpc_turn(a, false);
    if (b) rle_rpc_turn(b, false);
}

/* Start to connect without the blocking wait of rle_rpc_connect, whose other side is us. */
static inline rle_peer *link_to(rle_rpc *from, rle_rpc *to)
{
    char list[RLE_REF_ADDRESSES][RLE_ADDRESS_MAX];
    assert_true(rle_rpc_own_addresses(to, list) > 0);
    const char *addresses[] = {list[0]};
    rle_peer *peer = rle_rpc_peer(from, rle_rpc_name(to));
    rle_peer_hint(from, peer, addresses, 1);
    rle_rpc_enter(from);
    rle_peer_open(peer);
    rle_rpc_leave(from);
    for (int i = 0; i < 200 && !rle_peer_connected(from, peer); i++) turn(from, to);
    for (int i = 0; i < 20; i++) turn(from, to);
    return peer;
}

typedef struct pair {
    rle_rpc *a, *b; /* "a" listens, "b" connected to it */
    rle_peer *to_b, *to_a;
} pair;

static inline pair make_pair(const rle_rpc_options *oa, const rle_rpc_options *ob)
{
    pair p = {.a = worker("a", oa)};
    assert_int_equal(rle_rpc_listen(p.a, test_address, NULL), RLE_OK);
    p.b = worker("b", ob);
    p.to_a = link_to(p.b, p.a);
    assert_true(rle_peer_connected(p.b, p.to_a));
    p.to_b = rle_rpc_peer(p.a, "b");
    assert_true(rle_peer_connected(p.a, p.to_b));
    return p;
}

static inline void free_pair(pair *p)
{
    rle_rpc_free(p->a);
    rle_rpc_free(p->b);
}

/* ---- calls ---- */

static inline void begin_call(rle_encoder *e, const char *method, int args)
{
    rle_call_head head = {.method_len = (uint8_t)strlen(method), .args = (uint16_t)args};
    memcpy(head.method, method, head.method_len);
    rle_encoder_reset(e);
    rle_encode_call_head(e, &head);
}

static inline rle_future *call_with(rle_rpc *rpc, rle_peer *to, const char *method,
                                    rle_encoder *e, int64_t timeout, bool nested)
{
    rle_call_spec spec = {.peer = to, .method = method, .timeout = timeout, .nested = nested};
    rle_future *f = NULL;
    assert_int_equal(rle_rpc_call(rpc, &spec, e, &f), RLE_OK);
    return f;
}

static inline rle_future *call(rle_rpc *rpc, rle_peer *to, const char *method, int64_t number)
{
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, method, 1);
    rle_encode_integer(&e, number);
    rle_future *f = call_with(rpc, to, method, &e, 0, false);
    rle_encoder_fini(&e);
    return f;
}

/* Answer one call with its first argument, as an integer, plus one; NULL: there is none. */
static inline bool serve_one(rle_rpc *rpc)
{
    rle_incoming_info info;
    rle_decoder d;
    rle_value v;
    rle_incoming *in = rle_rpc_next_call(rpc, &info, &d);
    if (!in) return false;
    assert_int_equal(rle_decode(&d, &v), RLE_OK);
    rle_incoming_read(rpc, in);
    rle_encoder e;
    rle_encoder_init(&e);
    rle_encode_result_head(&e, 1);
    rle_encode_integer(&e, v.u.integer + 1);
    assert_int_equal(rle_incoming_reply(rpc, in, &e), RLE_OK);
    rle_encoder_fini(&e);
    return true;
}

static inline int64_t result_of(rle_future *f)
{
    rle_msg *m = rle_future_message(f);
    assert_non_null(m);
    rle_decoder d;
    uint16_t count;
    rle_value v;
    rle_decoder_init(&d, m->data, m->size, m->values, m->tensors);
    assert_int_equal(rle_decode_result_head(&d, &count), RLE_OK);
    assert_int_equal(rle_decode(&d, &v), RLE_OK);
    return v.u.integer;
}

/* The message of a failed future, and its code and outcome. */
static inline const char *error_of(rle_future *f, rle_wire_error *e)
{
    static char text[2048];
    rle_msg *m = rle_future_message(f);
    assert_non_null(m);
    assert_int_equal(rle_error_decode(m, e), RLE_OK);
    snprintf(text, sizeof text, "%.*s", (int)e->message.n, e->message.p);
    return text;
}

/* Seconds in `worker "name" did not answer for 1.0 s (outcome: unknown)`; -1: it says
 * something else. */
static inline double silent_for(rle_future *f, const char *name)
{
    rle_wire_error e;
    char who[RLE_NAME_MAX + 1] = "";
    double seconds = -1;
    int end = 0;
    const char *text = error_of(f, &e);
    if (sscanf(text, "worker \"%64[^\"]\" did not answer for %lf s (outcome: unknown)%n",
               who, &seconds, &end) != 2 ||
        strcmp(who, name) != 0 || text[end] || e.code != RLE_UNAVAILABLE ||
        e.outcome != RLE_OUTCOME_UNKNOWN)
        fail_msg("%s", text);
    return seconds;
}

static inline void wait_for(rle_rpc *a, rle_rpc *b, rle_rpc *asker, rle_future *f)
{
    for (int i = 0; i < 20000 && rle_future_status(asker, f) == RLE_FUTURE_PENDING; i++) {
        turn(a, b);
        if (i > 100) usleep(500);
    }
    assert_int_not_equal(rle_future_status(asker, f), RLE_FUTURE_PENDING);
}

/* ---- a bare socket ---- */

typedef struct raw {
    int fd;
    rle_rpc *server;
    uint64_t incarnation, id;
} raw;

static inline raw raw_connect(rle_rpc *server)
{
    raw r = {.server = server, .incarnation = 4711};
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    snprintf(un.sun_path, sizeof un.sun_path, "%.80s", test_address + 5);
    r.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(r.fd, (struct sockaddr *)&un, sizeof un), 0);
    turn(server, NULL);
    return r;
}

/* Bytes as they are; the server's loop is turned. */
static inline void raw_write(raw *r, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    for (int tries = 0; n && tries < 10000; tries++) {
        ssize_t put = send(r->fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (put > 0) {
            p += put;
            n -= (size_t)put;
        } else if (errno != EAGAIN) {
            return;
        }
        turn(r->server, NULL);
    }
    for (int i = 0; i < 3; i++) turn(r->server, NULL);
}

static inline void raw_send(raw *r, rle_frame f, const void *payload, size_t n)
{
    uint8_t bytes[RLE_FRAME_HEADER + 4096];
    f.payload = (uint32_t)n;
    if (!f.body) f.body = n;
    if (!f.values) f.values = (uint32_t)n;
    f.incarnation = r->incarnation;
    rle_frame_encode(&f, bytes);
    if (n) memcpy(bytes + RLE_FRAME_HEADER, payload, n);
    raw_write(r, bytes, RLE_FRAME_HEADER + n);
}

/* The next frame; 0 at the end of the stream. */
static inline int raw_read(raw *r, rle_frame *f, uint8_t *payload, size_t max)
{
    uint8_t head[RLE_FRAME_HEADER];
    size_t got = 0;
    for (int i = 0; i < 200 && got < sizeof head; i++) {
        turn(r->server, NULL);
        ssize_t n = recv(r->fd, head + got, sizeof head - got, MSG_DONTWAIT);
        if (n == 0) return 0;
        if (n < 0 && errno != EAGAIN) return 0;
        if (n > 0) got += (size_t)n;
    }
    if (got < sizeof head) return -1; /* nothing comes */
    assert_int_equal(rle_frame_decode(head, 64 << 20, f), RLE_OK);
    assert_true(f->payload <= max);
    size_t have = 0;
    while (have < f->payload) {
        turn(r->server, NULL);
        ssize_t n = recv(r->fd, payload + have, f->payload - have, MSG_DONTWAIT);
        if (n > 0) have += (size_t)n;
    }
    return 1;
}

static inline void raw_greeting(rle_writer *w, const raw *r, const char *name, int min, int max)
{
    write_greeting(w, r->incarnation, name, min, max);
}

/* HELLO, HELLO_ACK, AUTH; the answer to AUTH is left for the caller. `spoil`: bit of the
 * proof to flip, or -1. */
static inline void raw_hello_and_auth(raw *r, const char *name, int spoil)
{
    rle_writer w;
    rle_writer_init(&w);
    raw_greeting(&w, r, name, 1, 1);
    raw_send(r, (rle_frame){.type = RLE_FRAME_HELLO}, w.data, w.len);
    rle_frame f;
    uint8_t ack[4096], proof[RLE_PROOF_SIZE];
    assert_int_equal(raw_read(r, &f, ack, sizeof ack), 1);
    assert_int_equal(f.type, RLE_FRAME_HELLO_ACK);
    assert_int_equal(rle_auth_proof(&test_token, 'c', w.data, w.len, ack, f.payload, proof),
                     RLE_OK);
    rle_writer_fini(&w);
    if (spoil >= 0) proof[spoil / 8] ^= (uint8_t)(1 << spoil % 8);
    raw_send(r, (rle_frame){.type = RLE_FRAME_AUTH, .credit = 64}, proof, sizeof proof);
}

static inline raw raw_join(rle_rpc *server, const char *name)
{
    raw r = raw_connect(server);
    rle_frame f;
    uint8_t payload[4096];
    raw_hello_and_auth(&r, name, -1);
    assert_int_equal(raw_read(&r, &f, payload, sizeof payload), 1);
    assert_int_equal(f.type, RLE_FRAME_AUTH);
    return r;
}

static inline void raw_close(raw *r)
{
    close(r->fd);
    for (int i = 0; i < 3; i++) turn(r->server, NULL);
}

#endif
