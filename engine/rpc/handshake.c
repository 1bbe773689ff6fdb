/* handshake.c - who may talk to us.
 *
 *   initiator                         acceptor
 *   HELLO  (greeting)          ->
 *                              <-     HELLO_ACK (greeting, the version both speak)
 *   AUTH   (proof, credits)    ->
 *                              <-     AUTH (proof, credits), or ERROR
 *
 * The initiator proves first, so nothing can be learnt from an acceptor without the token
 * but its name and version. A wrong token, a malformed proof and a proof for another
 * handshake get the same answer. HELLO and HELLO_ACK keep their form in every version. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/world.h"
#include "rpc/rpc_internal.h"

/* Element types this build can carry. */
#define DTYPES_CARRIED (RLE_DTYPES_ALL)

enum { LITTLE_ENDIAN_MARK = 1 };

/* ---- greetings ---- */

static void write_short(rle_writer *w, const char *s)
{
    size_t n = strlen(s);
    rle_write_u8(w, (uint8_t)n);
    rle_write_bytes(w, s, n);
}

static bool read_short(rle_reader *r, char *out, size_t size)
{
    size_t n = rle_read_u8(r);
    const uint8_t *p = rle_read_bytes(r, n);
    if (!p || n >= size || memchr(p, 0, n)) {
        r->failed = true;
        return false;
    }
    memcpy(out, p, n);
    out[n] = 0;
    return true;
}

static void encode_greeting(rle_writer *w, const rle_greeting *g, uint16_t version)
{
    rle_write_u16(w, version);
    rle_write_u16(w, g->min_version);
    rle_write_u16(w, g->max_version);
    rle_write_u8(w, LITTLE_ENDIAN_MARK);
    rle_write_u8(w, 0); /* role: every worker can do everything */
    rle_write_u32(w, g->dtypes);
    rle_write_u32(w, g->features);
    rle_write_u32(w, g->heartbeat_ms);
    rle_write_u32(w, g->timeout_ms);
    rle_write_u32(w, g->max_frame);
    rle_write_u32(w, g->pid);
    rle_write_u64(w, g->max_message);
    rle_write_u64(w, g->incarnation);
    rle_write_bytes(w, g->nonce, sizeof g->nonce);
    write_short(w, g->name);
    rle_write_u8(w, (uint8_t)g->addresses);
    for (int i = 0; i < g->addresses; i++) write_short(w, g->address[i]);
}

/* Later versions may append; what follows is ignored. */
static rle_status decode_greeting(const uint8_t *p, size_t n, rle_greeting *g, uint16_t *version)
{
    rle_reader r;
    rle_reader_init(&r, p, n);
    memset(g, 0, sizeof *g);
    *version = rle_read_u16(&r);
    g->min_version = rle_read_u16(&r);
    g->max_version = rle_read_u16(&r);
    uint8_t endian = rle_read_u8(&r);
    rle_read_u8(&r);
    g->dtypes = rle_read_u32(&r);
    g->features = rle_read_u32(&r);
    g->heartbeat_ms = rle_read_u32(&r);
    g->timeout_ms = rle_read_u32(&r);
    g->max_frame = rle_read_u32(&r);
    g->pid = rle_read_u32(&r);
    g->max_message = rle_read_u64(&r);
    g->incarnation = rle_read_u64(&r);
    const uint8_t *nonce = rle_read_bytes(&r, RLE_NONCE_SIZE);
    if (nonce) memcpy(g->nonce, nonce, RLE_NONCE_SIZE);
    read_short(&r, g->name, sizeof g->name);
    int addresses = rle_read_u8(&r);
    for (int i = 0; i < addresses && !r.failed; i++) {
        char address[256];
        if (read_short(&r, address, sizeof address) && i < RLE_REF_ADDRESSES &&
            strlen(address) < RLE_ADDRESS_MAX)
            memcpy(g->address[g->addresses++], address, strlen(address) + 1);
    }
    if (r.failed || endian != LITTLE_ENDIAN_MARK || !rle_name_ok(g->name, strlen(g->name)) ||
        g->incarnation == 0 || g->min_version > g->max_version || g->max_message == 0)
        return rle_fail(RLE_INVALID_ARGUMENT, "malformed greeting");
    return RLE_OK;
}

static rle_status my_greeting(const rle_conn *conn, rle_greeting *g)
{
    const rle_rpc *rpc = conn->rpc;
    memset(g, 0, sizeof *g);
    g->min_version = (uint16_t)rpc->o.min_version;
    g->max_version = (uint16_t)rpc->o.max_version;
    g->dtypes = DTYPES_CARRIED;
    g->heartbeat_ms = (uint32_t)(rpc->o.heartbeat / 1000000);
    g->timeout_ms = (uint32_t)(rpc->o.peer_timeout / 1000000);
    g->max_frame = RLE_FRAME_MAX_PAYLOAD;
    g->pid = (uint32_t)rle_process_number();
    g->max_message = rpc->o.max_message;
    g->incarnation = rpc->incarnation;
    snprintf(g->name, sizeof g->name, "%s", rpc->name);
    for (int i = 0; i < rpc->listener_count && i < RLE_REF_ADDRESSES; i++)
        if (rle_address_seen(&rpc->listeners[i].address, conn->transport.fd,
                             g->address[g->addresses]))
            g->addresses++;
    return rle_random_bytes(g->nonce, sizeof g->nonce);
}

static rle_status keep_payload(const uint8_t *payload, size_t n, uint8_t **out,
                               size_t *len)
{
    uint8_t *copy = rle_malloc(n);
    if (!copy) return rle_oom(n, "handshake");
    memcpy(copy, payload, n);
    *out = copy;
    *len = n;
    return RLE_OK;
}

static rle_status send_payload(rle_conn *conn, rle_frame_type type, uint32_t credit,
                               const void *payload, size_t n)
{
    rle_frame f = {.type = (uint8_t)type, .credit = credit, .values = (uint32_t)n};
    struct iovec part = {(void *)payload, n};
    return rle_conn_send(conn, &f, &part, 1, false, false);
}

static rle_status send_greeting(rle_conn *conn, rle_frame_type type, uint16_t version,
                                uint8_t **keep, size_t *len)
{
    rle_greeting mine;
    RLE_TRY(my_greeting(conn, &mine));
    rle_writer w;
    rle_writer_init(&w);
    encode_greeting(&w, &mine, version);
    rle_status s = rle_writer_status(&w, "handshake");
    if (s == RLE_OK && w.len > RLE_PREAUTH_MAX)
        s = rle_fail(RLE_INTERNAL, "greeting of %zu bytes", w.len);
    if (s == RLE_OK) s = keep_payload(w.data, w.len, keep, len);
    if (s == RLE_OK) s = send_payload(conn, type, 0, w.data, w.len);
    rle_writer_fini(&w);
    return s;
}

/* ---- refusing ---- */

static void send_error(rle_conn *conn, rle_status code, const char *text)
{
    rle_wire_error e = {.code = code,
                        .message = {text, strlen(text)},
                        .worker = {conn->rpc->name, strlen(conn->rpc->name)}};
    rle_writer w;
    rle_writer_init(&w);
    rle_error_encode(&w, &e);
    if (!w.failed) {
        rle_frame f = {.type = RLE_FRAME_ERROR, .code = (uint16_t)code,
                       .values = (uint32_t)w.len};
        struct iovec part = {w.data, w.len};
        rle_conn_send(conn, &f, &part, 1, false, false);
    }
    rle_writer_fini(&w);
}

void rle_handshake_refuse(rle_conn *conn, rle_status code)
{
    char text[512];
    snprintf(text, sizeof text, "%s", rle_message());
    send_error(conn, code, text);
    conn->rpc->counters.refused_peers++;
    rle_conn_close(conn, text, true);
}

/* Whoever made the connection (rle_rpc_connect) hears of a failure. What an attempt like
 * it may do away with is not lasting: the other side was cut off, slow, or not there. */
static void tell_failure(rle_conn *conn, rle_status code, const char *text)
{
    rle_connect_result *r = conn->result;
    r->done = true;
    r->status = code;
    r->lasting = code != RLE_UNAVAILABLE && code != RLE_ABORTED && code != RLE_DATA_LOSS;
    snprintf(r->message, sizeof r->message, "%s", text);
    snprintf(r->name, sizeof r->name, "%s", conn->handshake->theirs.name);
}

/* The initiator learns that it was refused, or finds a reason to give up. */
void rle_handshake_give_up(rle_conn *conn, rle_status code)
{
    char text[512];
    snprintf(text, sizeof text, "%s", rle_message());
    rle_peer *peer = conn->peer && conn->peer->opening == conn ? conn->peer : NULL;
    bool looked_for = peer && rle_link_seeks(peer);
    if (conn->result && !conn->result->done) {
        tell_failure(conn, code, text);
    } else if (looked_for) {
        rle_log(RLE_LOG_DEBUG, "%s: %s", conn->address.shown, text);
    } else {
        rle_log_about(conn->rpc, RLE_LOG_WARN, "%s: %s", conn->address.shown, text);
    }
    if (code == RLE_ABORTED && peer) {
        /* Both sides connected to each other; the other connection is the one that stays,
         * and it sends what is held. */
        peer->opening = NULL;
        conn->peer = NULL;
        if (looked_for) rle_link_missed(peer, text);
    } else if (looked_for && (code == RLE_ALREADY_EXISTS || code == RLE_UNAUTHENTICATED ||
                              code == RLE_UNIMPLEMENTED)) {
        rle_link_refused(peer, code);
    }
    rle_conn_close(conn, text, true);
}

/* ---- opening ---- */

static void open_conn(rle_conn *conn, rle_peer *peer)
{
    rle_rpc *rpc = conn->rpc;
    rle_greeting *theirs = &conn->handshake->theirs;
    conn->state = RLE_CONN_OPEN;
    if (rpc->joining == conn) rpc->joining = NULL;
    if (!conn->initiator) rle_half_open_less(rpc);
    conn->incarnation = theirs->incarnation;
    conn->session = ++rpc->sessions;
    conn->max_message = theirs->max_message;
    conn->pid = (pid_t)theirs->pid;
    uid_t uid;
    if (conn->is_unix) rle_peer_credentials(conn->transport.fd, &conn->pid, &uid);
    conn->peer = peer;
    peer->conn = conn;
    if (peer->opening == conn) peer->opening = NULL;
    peer->known = true;
    peer->left = false;
    peer->pid = conn->pid;
    rle_peer_listens(peer, (const char(*)[RLE_ADDRESS_MAX])theirs->address,
                     theirs->addresses);
    rle_peer_changed(peer);
    rle_link_joined(peer);
    if (conn->result && !conn->result->done) {
        conn->result->done = true;
        conn->result->status = RLE_OK;
        conn->result->peer = peer;
    }
    conn->result = NULL;
    rle_handshake_free(conn);
    if (rpc->stopping) rle_conn_goaway(conn, RLE_OK);
    if (conn->state == RLE_CONN_OPEN && rpc->service)
        rpc->service->joined(rpc->service, peer);
    if (conn->state == RLE_CONN_OPEN && peer->held) rle_peer_send_held(peer);
    if (conn->state == RLE_CONN_OPEN && rpc->followers) rle_followers_ask(conn);
}

/* May a worker of that name join over `conn`? */
static rle_status check_name(rle_conn *conn, const rle_greeting *theirs, rle_peer **out)
{
    rle_peer *peer = rle_peer_get(conn->rpc, theirs->name);
    if (!peer) return rle_oom(sizeof *peer, "worker");
    if (peer->is_self)
        return rle_fail(RLE_ALREADY_EXISTS, "\"%s\" is already the name of pid %d; pick another "
                        "name", theirs->name, (int)rle_process_number());
    if (peer->conn)
        return rle_fail(RLE_ALREADY_EXISTS,
                        "\"%s\" is already connected from pid %d; pick another name",
                        theirs->name, (int)peer->conn->pid);
    *out = peer;
    return RLE_OK;
}

/* ---- frames ---- */

static void version_range(int min, int max, char *out, size_t size)
{
    if (min == max)
        snprintf(out, size, "%d", min);
    else
        snprintf(out, size, "%d to %d", min, max);
}

static void got_hello(rle_conn *conn, const uint8_t *payload, size_t n)
{
    rle_handshake *h = conn->handshake;
    rle_rpc *rpc = conn->rpc;
    uint16_t ignored;
    rle_status s = decode_greeting(payload, n, &h->theirs, &ignored);
    if (s == RLE_OK) s = keep_payload(payload, n, &h->hello, &h->hello_len);
    if (s != RLE_OK) {
        rle_conn_reject(conn);
        return;
    }
    int low = h->theirs.min_version > rpc->o.min_version ? h->theirs.min_version
                                                         : rpc->o.min_version;
    int high = h->theirs.max_version < rpc->o.max_version ? h->theirs.max_version
                                                          : rpc->o.max_version;
    if (low > high) {
        char theirs[32], mine[32];
        version_range(h->theirs.min_version, h->theirs.max_version, theirs, sizeof theirs);
        version_range(rpc->o.min_version, rpc->o.max_version, mine, sizeof mine);
        rle_fail(RLE_UNIMPLEMENTED, "\"%s\" speaks protocol %s, \"%s\" speaks %s",
                 h->theirs.name, theirs, rpc->name, mine);
        if (rle_stranger_told(rpc))
            rle_log(RLE_LOG_WARN, "refused %s: %s", conn->address.shown, rle_message());
        rle_handshake_refuse(conn, RLE_UNIMPLEMENTED);
        return;
    }
    conn->state = RLE_CONN_PROVING;
    if (send_greeting(conn, RLE_FRAME_HELLO_ACK, (uint16_t)high, &h->ack, &h->ack_len) !=
        RLE_OK)
        rle_conn_reject(conn);
}

static void got_hello_ack(rle_conn *conn, const uint8_t *payload, size_t n)
{
    rle_handshake *h = conn->handshake;
    rle_rpc *rpc = conn->rpc;
    uint16_t version;
    rle_status s = decode_greeting(payload, n, &h->theirs, &version);
    if (s == RLE_OK && (version < rpc->o.min_version || version > rpc->o.max_version))
        s = rle_fail(RLE_INVALID_ARGUMENT, "malformed greeting");
    if (s == RLE_OK) s = keep_payload(payload, n, &h->ack, &h->ack_len);
    if (s != RLE_OK) {
        rle_handshake_give_up(conn, s);
        return;
    }
    rle_peer *peer = conn->result ? rle_peer_get(rpc, h->theirs.name) : NULL;
    if (peer && peer->conn && peer->conn->incarnation == h->theirs.incarnation) {
        /* It has joined here meanwhile; a second proof would only cross that. */
        rle_attempt_drop(conn, peer);
        return;
    }
    uint8_t proof[RLE_PROOF_SIZE];
    s = rle_auth_proof(&rpc->token, 'c', h->hello, h->hello_len, h->ack, h->ack_len, proof);
    if (s == RLE_OK)
        s = send_payload(conn, RLE_FRAME_AUTH, (uint32_t)rpc->o.max_credits, proof,
                         sizeof proof);
    if (s != RLE_OK && conn->state != RLE_CONN_DEAD)
        rle_handshake_give_up(conn, s);
    else if (conn->state != RLE_CONN_DEAD)
        conn->state = RLE_CONN_PROVING;
}

/* Acceptor: the initiator's proof. */
static void judge(rle_conn *conn, const rle_frame *f, const uint8_t *payload)
{
    rle_handshake *h = conn->handshake;
    rle_rpc *rpc = conn->rpc;
    uint8_t want[RLE_PROOF_SIZE], got[RLE_PROOF_SIZE] = {0};
    if (f->payload == sizeof got) memcpy(got, payload, sizeof got);
    rle_status s = rle_auth_proof(&rpc->token, 'c', h->hello, h->hello_len, h->ack,
                                  h->ack_len, want);
    bool known = s == RLE_OK && rle_auth_equal(want, got) && f->payload == sizeof got;
    if (!known) {
        rle_refusal_log(conn, "wrong token");
        rle_fail(RLE_UNAUTHENTICATED, "\"%s\" refused the token", rpc->name);
        rle_handshake_refuse(conn, RLE_UNAUTHENTICATED);
        return;
    }
    h->credit = f->credit;
    rle_handshake_admit(conn);
}

void rle_handshake_admit(rle_conn *conn)
{
    rle_handshake *h = conn->handshake;
    rle_rpc *rpc = conn->rpc;
    rle_peer *peer = rle_peer_get(rpc, h->theirs.name);
    rle_status s = peer ? RLE_OK : rle_oom(sizeof *peer, "worker");
    if (peer && peer->conn && !rle_replace(conn, peer->conn)) return;
    if (s == RLE_OK) s = check_name(conn, &h->theirs, &peer);
    rle_conn *mine = s == RLE_OK ? rle_own_attempt(rpc, peer, &h->theirs) : NULL;
    if (mine && strcmp(rpc->name, h->theirs.name) < 0)
        s = rle_fail(RLE_ABORTED, "\"%s\" is connecting to \"%s\" already", rpc->name,
                     h->theirs.name);
    if (s != RLE_OK) {
        if (s != RLE_ABORTED)
            rle_log_about(rpc, RLE_LOG_WARN, "refused %s: %s", conn->address.shown,
                          rle_message());
        rle_handshake_refuse(conn, s);
        return;
    }
    uint8_t proof[RLE_PROOF_SIZE];
    s = rle_auth_proof(&rpc->token, 's', h->hello, h->hello_len, h->ack, h->ack_len,
                       proof);
    if (s == RLE_OK)
        s = send_payload(conn, RLE_FRAME_AUTH, (uint32_t)rpc->o.max_credits, proof,
                         sizeof proof);
    if (conn->state == RLE_CONN_DEAD) return;
    if (s != RLE_OK) {
        rle_conn_reject(conn);
        return;
    }
    if (mine) rle_attempt_drop(mine, peer);
    conn->credits = h->credit < RLE_CALLS_HARD ? h->credit : RLE_CALLS_HARD;
    open_conn(conn, peer);
}

/* Initiator: the acceptor knows the token too. */
static void welcomed(rle_conn *conn, const rle_frame *f, const uint8_t *payload)
{
    rle_handshake *h = conn->handshake;
    rle_rpc *rpc = conn->rpc;
    uint8_t want[RLE_PROOF_SIZE];
    rle_status s = rle_auth_proof(&rpc->token, 's', h->hello, h->hello_len, h->ack, h->ack_len,
                                  want);
    if (s == RLE_OK && (f->payload != sizeof want || !rle_auth_equal(want, payload)))
        s = rle_fail(RLE_UNAUTHENTICATED, "\"%s\" at %s does not know the token in %s",
                     h->theirs.name, conn->address.shown, rpc->token.source);
    rle_peer *peer = NULL;
    if (s == RLE_OK && conn->peer && strcmp(conn->peer->name, h->theirs.name) != 0)
        s = rle_fail(RLE_UNAVAILABLE, "%s is now \"%s\", not \"%s\"", conn->address.shown,
                     h->theirs.name, conn->peer->name);
    if (s == RLE_OK) s = check_name(conn, &h->theirs, &peer);
    if (s != RLE_OK) {
        rle_handshake_give_up(conn, s);
        return;
    }
    conn->credits = f->credit < RLE_CALLS_HARD ? f->credit : RLE_CALLS_HARD;
    open_conn(conn, peer);
}

static void refused(rle_conn *conn, const rle_frame *f, const uint8_t *payload)
{
    rle_msg m = {.data = payload, .size = f->payload, .values = f->payload};
    rle_wire_error e;
    rle_status code = RLE_UNAVAILABLE;
    if (rle_error_decode(&m, &e) == RLE_OK) {
        code = e.code;
        /* It lacks memory or descriptors: that may pass, and says nothing of ours. */
        if (code == RLE_RESOURCE_EXHAUSTED) code = RLE_UNAVAILABLE;
        if (code == RLE_UNAUTHENTICATED)
            rle_fail(code, "\"%.*s\" refused the token in %s", (int)e.worker.n, e.worker.p,
                     conn->rpc->token.source);
        else
            rle_fail(code, "%.*s", (int)(e.message.n < 400 ? e.message.n : 400), e.message.p);
    }
    rle_handshake_give_up(conn, code);
}

void rle_handshake_frame(rle_conn *conn, const rle_frame *f, const uint8_t *payload)
{
    bool greeting = conn->state == RLE_CONN_GREETING, proving = conn->state == RLE_CONN_PROVING;
    if (f->type == RLE_FRAME_HELLO && greeting && !conn->initiator) {
        got_hello(conn, payload, f->payload);
    } else if (f->type == RLE_FRAME_HELLO_ACK && greeting && conn->initiator) {
        got_hello_ack(conn, payload, f->payload);
    } else if (f->type == RLE_FRAME_AUTH && proving && !conn->initiator &&
               !conn->handshake->contest) {
        judge(conn, f, payload);
    } else if (f->type == RLE_FRAME_AUTH && proving && conn->initiator) {
        welcomed(conn, f, payload);
    } else if (f->type == RLE_FRAME_ERROR && conn->initiator) {
        refused(conn, f, payload);
    } else {
        rle_handshake_spoiled(conn,
                              rle_fail(RLE_INVALID_ARGUMENT, "%s frame out of place",
                                       rle_frame_type_name(f->type)));
    }
}

void rle_handshake_spoiled(rle_conn *conn, rle_status code)
{
    if (conn->state == RLE_CONN_DEAD) return;
    bool open = conn->state == RLE_CONN_OPEN;
    if (conn->initiator && !open) {
        rle_handshake_give_up(conn, code);
        return;
    }
    /* Whoever speaks TLS takes no word of ours, but sees by the first one what is spoken
     * here. */
    if (!open && strncmp(rle_message(), "the other side speaks tls", 25) == 0)
        send_error(conn, RLE_FAILED_PRECONDITION, rle_message());
    rle_conn_reject(conn);
}

static void late(rle_timer *t)
{
    rle_handshake *h = (rle_handshake *)((char *)t - offsetof(rle_handshake, timer));
    rle_fail(RLE_UNAVAILABLE, "handshake not finished in %.3g s",
             (double)h->patience / RLE_SECONDS);
    if (h->conn->initiator)
        rle_handshake_give_up(h->conn, RLE_UNAVAILABLE);
    else
        rle_conn_reject(h->conn);
}

/* Initiator: the first word. */
static void greet(rle_conn *conn)
{
    rle_handshake *h = conn->handshake;
    rle_status s = send_greeting(conn, RLE_FRAME_HELLO, 0, &h->hello, &h->hello_len);
    if (s != RLE_OK && conn->state != RLE_CONN_DEAD) rle_handshake_give_up(conn, s);
}

void rle_handshake_broken(rle_conn *conn, rle_status code)
{
    char why[512];
    snprintf(why, sizeof why, "%s", rle_message());
    if (!conn->initiator && code == RLE_UNAUTHENTICATED) {
        rle_refusal_log(conn, why);
        conn->rpc->counters.refused_peers++;
        rle_conn_close(conn, why, true);
    } else if (!conn->initiator) {
        rle_conn_reject(conn);
    } else {
        rle_handshake_give_up(conn, code);
    }
}

void rle_handshake_secure(rle_conn *conn)
{
    bool done;
    rle_status s = conn->transport.ops->shake(&conn->transport, &done);
    if (s != RLE_OK) {
        rle_handshake_broken(conn, s);
        return;
    }
    rle_conn_arm_write(conn, rle_conn_unsent(conn) > 0);
    if (!done) return;
    conn->state = RLE_CONN_GREETING;
    if (conn->initiator) greet(conn);
}

rle_status rle_handshake_time(rle_conn *conn)
{
    rle_handshake *h = conn->handshake;
    int64_t now = rle_now(), until = conn->result ? conn->result->until : 0;
    h->patience = RLE_HANDSHAKE_TIME;
    if (until && until - now < h->patience) h->patience = until > now ? until - now : 0;
    h->timer.fire = late;
    return rle_timer_arm(&conn->rpc->loop, &h->timer, now + h->patience);
}

void rle_handshake_begin(rle_conn *conn)
{
    if (conn->initiator && conn->state == RLE_CONN_CONNECTING) {
        int why = rle_connect_error(conn->transport.fd);
        if (why) {
            rle_handshake_give_up(conn, rle_connect_failed(conn->address.shown, why));
            return;
        }
        conn->state = conn->transport.ops->shake ? RLE_CONN_SECURING : RLE_CONN_GREETING;
        if (!rle_watch_on(conn->read_watch)) {
            rle_oom(0, "connection");
            rle_handshake_give_up(conn, RLE_RESOURCE_EXHAUSTED);
            return;
        }
    }
    rle_handshake *h = conn->handshake;
    rle_status s = h->timer.place ? RLE_OK : rle_handshake_time(conn);
    if (s != RLE_OK) {
        if (conn->initiator)
            rle_handshake_give_up(conn, s);
        else
            rle_conn_reject(conn);
    } else if (conn->initiator && conn->state == RLE_CONN_SECURING) {
        rle_handshake_secure(conn);
    } else if (conn->initiator) {
        greet(conn);
    }
}

void rle_handshake_free(rle_conn *conn)
{
    if (!conn->handshake) return;
    rle_timer_disarm(&conn->rpc->loop, &conn->handshake->timer);
    rle_contest_leave(conn->handshake);
    rle_free(conn->handshake->hello);
    rle_free(conn->handshake->ack);
    rle_free(conn->handshake);
    conn->handshake = NULL;
}
