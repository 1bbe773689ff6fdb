/* tls.c - TLS over another filling of the table: handshake, bytes in and out. */
#include "rpc/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "rpc/tls_internal.h"

enum {
    RECORD = 16 << 10,      /* plain bytes of one record */
    STAGE_FULL = 128 << 10, /* beyond it nothing more is encrypted before it is sent */
    READ_AHEAD = 64 << 10   /* of one read, when the handshake is done */
};

/* ---- what OpenSSL reads and writes ---- */

/* Bytes of the socket; a stranger's are counted. 0: there is none, for the reason that is
 * noted. */
static size_t receive(rle_tls_conn *c, uint8_t *to, size_t most)
{
    if (!c->shaken) {
        if (c->received >= c->most_before) {
            c->too_much = true;
            return 0;
        }
        if (most > c->most_before - c->received) most = c->most_before - c->received;
    }
    struct iovec block = {to, most};
    ssize_t got = c->below.ops->readv(&c->below, &block, 1);
    if (got > 0) {
        for (size_t i = 0; i < (size_t)got && c->received + i < sizeof c->first; i++)
            c->first[c->received + i] = to[i];
        c->received += (size_t)got;
        c->drained = (size_t)got < most;
        return (size_t)got;
    }
    if (got == 0)
        c->ended = true;
    else if (errno == EAGAIN)
        c->drained = true;
    else
        c->socket_errno = errno;
    return 0;
}

/* What came before there was an SSL. */
static int read_early(rle_tls_conn *c, char *to, size_t most)
{
    size_t n = c->early_len - c->early_read;
    if (n > most) n = most;
    memcpy(to, c->early + c->early_read, n);
    c->early_read += n;
    if (c->early_read == c->early_len) {
        rle_free(c->early);
        c->early = NULL;
    }
    return (int)n;
}

static int bio_read(BIO *bio, char *to, int n)
{
    rle_tls_conn *c = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (c->early) return read_early(c, to, (size_t)n);
    /* Drained: the last read took all there was. */
    size_t got = c->drained ? 0 : receive(c, (uint8_t *)to, (size_t)n);
    if (got) return (int)got;
    if (c->ended) return 0;
    if (c->drained) BIO_set_retry_read(bio);
    return -1;
}

static int bio_write(BIO *bio, const char *from, int n)
{
    rle_tls_conn *c = BIO_get_data(bio);
    rle_tls *tls = c->tls;
    BIO_clear_retry_flags(bio);
    if ((size_t)n > sizeof tls->stage - tls->staged) return -1;
    memcpy(tls->stage + tls->staged, from, (size_t)n);
    tls->staged += (size_t)n;
    return n;
}

static long bio_ctrl(BIO *bio, int what, long number, void *p)
{
    (void)number;
    (void)p;
    const rle_tls_conn *c = BIO_get_data(bio);
    if (what == BIO_CTRL_FLUSH) return 1;
    return what == BIO_CTRL_EOF ? c->ended : 0;
}

BIO_METHOD *rle_tls_bio_method(void)
{
    BIO_METHOD *m = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "rlengine socket");
    if (!m) return NULL;
    BIO_meth_set_read(m, bio_read);
    BIO_meth_set_write(m, bio_write);
    BIO_meth_set_ctrl(m, bio_ctrl);
    return m;
}

/* ---- what is waiting to be sent ---- */

/* Bytes that the socket took of `n`. A connection that is broken for writing takes them
 * all: that it is, and what the other side said last, is found by reading. */
static size_t give_socket(rle_tls_conn *c, const uint8_t *p, size_t n)
{
    size_t at = 0;
    while (at < n && !c->mute) {
        struct iovec block = {(uint8_t *)p + at, n - at};
        ssize_t put = c->below.ops->writev(&c->below, &block, 1);
        if (put > 0)
            at += (size_t)put;
        else if (errno == EAGAIN)
            return at;
        else if (errno == EPIPE || errno == ECONNRESET)
            c->mute = true;
        else
            c->write_errno = errno;
        if (c->write_errno) return at;
    }
    return n;
}

static rle_status keep_rest(rle_tls_conn *c, const uint8_t *p, size_t n)
{
    if (!n) return RLE_OK;
    uint8_t *grown = rle_realloc(c->out, c->out_len + n);
    if (!grown) return rle_oom(c->out_len + n, "output of a connection");
    memcpy(grown + c->out_len, p, n);
    c->out = grown;
    c->out_len += n;
    return RLE_OK;
}

static void push_kept(rle_tls_conn *c)
{
    if (c->out_sent < c->out_len)
        c->out_sent += give_socket(c, c->out + c->out_sent, c->out_len - c->out_sent);
    if (c->out_sent < c->out_len || !c->out) return;
    rle_free(c->out);
    c->out = NULL;
    c->out_len = c->out_sent = 0;
}

/* Send what lies in the stage, behind what was kept. */
static rle_status push(rle_tls_conn *c)
{
    rle_tls *tls = c->tls;
    push_kept(c);
    size_t n = tls->staged;
    tls->staged = 0;
    if (!n && !c->write_errno) return RLE_OK;
    size_t sent = c->out_len ? 0 : give_socket(c, tls->stage, n);
    if (c->write_errno) return rle_fail(RLE_UNAVAILABLE, "%s", strerror(c->write_errno));
    return keep_rest(c, tls->stage + sent, n - sent);
}

/* The connection is of no use any more, for the reason in rle_message(). */
static int spoiled(rle_tls_conn *c, rle_status code)
{
    rle_free(c->why);
    c->why = rle_strdup(rle_message());
    c->code = code;
    c->failed = true;
    errno = EPROTO;
    return -1;
}

/* For a worker without TLS: it sees by these bytes what is spoken here. */
static void stage_alert(rle_tls *tls)
{
    static const uint8_t fatal[] = {
        0x15, 3, 3, 0, 2, SSL3_AL_FATAL, SSL_AD_PROTOCOL_VERSION};
    if (tls->staged) return; /* OpenSSL has said something */
    memcpy(tls->stage, fatal, sizeof fatal);
    tls->staged = sizeof fatal;
}

/* ---- the table ---- */

static rle_status new_ssl(rle_tls_conn *c)
{
    rle_tls *tls = c->tls;
    BIO *bio = BIO_new(tls->method);
    c->ssl = SSL_new(c->initiator ? tls->client : tls->server);
    /* The callbacks of the key find the connection by it. */
    if (!bio || !c->ssl || !SSL_set_app_data(c->ssl, c)) {
        BIO_free(bio);
        ERR_clear_error();
        return rle_oom(0, "tls connection");
    }
    BIO_set_data(bio, c);
    BIO_set_init(bio, 1);
    SSL_set_bio(c->ssl, bio, bio);
    if (c->initiator)
        SSL_set_connect_state(c->ssl);
    else
        SSL_set_accept_state(c->ssl);
    return RLE_OK;
}

/* The other side begins, and may be anybody: what TLS keeps, tens of KiB, is there for it
 * when all of its first record has come, and its bytes alone until then. */
static rle_status first_record(rle_tls_conn *c, bool *whole)
{
    enum { HEAD = 5, HANDSHAKE = 0x16 };
    uint8_t bytes[1024];
    *whole = false;
    for (;;) {
        size_t want = HEAD;
        if (c->early_len >= HEAD) {
            want += (size_t)c->early[3] << 8 | c->early[4];
            *whole = c->early[0] != HANDSHAKE || c->early_len >= want;
            if (*whole) return new_ssl(c);
            c->too_much = want > c->most_before;
        }
        if (c->too_much) return rle_tls_explain(c, SSL_ERROR_SYSCALL);
        if (c->drained) return RLE_OK; /* the rest is still to come */
        size_t most = want - c->early_len;
        size_t got = receive(c, bytes, most < sizeof bytes ? most : sizeof bytes);
        if (!got) return c->drained ? RLE_OK : rle_tls_explain(c, SSL_ERROR_SYSCALL);
        uint8_t *grown = rle_realloc(c->early, c->early_len + got);
        if (!grown) return rle_oom(c->early_len + got, "connection");
        memcpy(grown + c->early_len, bytes, got);
        c->early = grown;
        c->early_len += got;
    }
}

static rle_status tls_shake(rle_transport *t, bool *done)
{
    rle_tls_conn *c = t->self;
    *done = false;
    c->drained = false;
    ERR_clear_error();
    rle_status s = RLE_OK;
    int rc = 0;
    if (!c->ssl) {
        bool whole;
        s = first_record(c, &whole);
        if (s == RLE_OK && !whole) return RLE_OK;
    }
    if (s == RLE_OK) {
        rc = SSL_do_handshake(c->ssl);
        int kind = rc == 1 ? SSL_ERROR_NONE : SSL_get_error(c->ssl, rc);
        if (kind != SSL_ERROR_NONE && kind != SSL_ERROR_WANT_READ)
            s = rle_tls_explain(c, kind);
    }
    if (s == RLE_INVALID_ARGUMENT) stage_alert(c->tls);
    char why[320];
    snprintf(why, sizeof why, "%s", s != RLE_OK ? rle_message() : "");
    rle_status sent = push(c); /* an alert, too */
    if (s != RLE_OK) return rle_fail(s, "%s", why);
    RLE_TRY(sent);
    if (rc != 1) return RLE_OK;
    RLE_TRY(rle_tls_accepted(c));
    c->shaken = *done = true;
    SSL_set_default_read_buffer_len(c->ssl, READ_AHEAD);
    c->more = true; /* what came with the last message of the handshake */
    return RLE_OK;
}

static ssize_t tls_readv(rle_transport *t, const struct iovec *iov, int n)
{
    rle_tls_conn *c = t->self;
    size_t total = 0;
    if (c->failed) {
        errno = EPROTO;
        return -1;
    }
    c->drained = false;
    c->more = true;
    for (int i = 0; i < n; i++) {
        for (size_t at = 0, got; at < iov[i].iov_len; at += got, total += got) {
            ERR_clear_error();
            int rc = SSL_read_ex(c->ssl, (uint8_t *)iov[i].iov_base + at,
                                 iov[i].iov_len - at, &got);
            if (rc == 1) continue;
            int kind = SSL_get_error(c->ssl, rc);
            bool over = kind == SSL_ERROR_ZERO_RETURN || c->ended;
            bool bad = kind != SSL_ERROR_WANT_READ && !over && !c->socket_errno;
            if (bad) spoiled(c, rle_tls_explain(c, kind));
            /* An alert, or the answer to a change of keys. */
            rle_status sent = push(c);
            if (sent != RLE_OK) spoiled(c, sent);
            c->more = kind != SSL_ERROR_WANT_READ;
            if (total) return (ssize_t)total; /* the rest is told by the next read */
            if (over) return 0;
            errno = c->failed ? EPROTO : c->socket_errno ? c->socket_errno : EAGAIN;
            return -1;
        }
    }
    return (ssize_t)total;
}

static ssize_t tls_writev(rle_transport *t, const struct iovec *iov, int n)
{
    rle_tls_conn *c = t->self;
    size_t total = 0;
    rle_status s = push(c);
    if (s != RLE_OK) return spoiled(c, s);
    if (c->failed) {
        errno = EPROTO;
        return -1;
    }
    for (int i = 0; i < n; i++) {
        for (size_t at = 0, put; at < iov[i].iov_len; at += put, total += put) {
            if (c->out_len) goto full;
            size_t piece = iov[i].iov_len - at < RECORD ? iov[i].iov_len - at : RECORD;
            ERR_clear_error();
            int rc =
                SSL_write_ex(c->ssl, (const uint8_t *)iov[i].iov_base + at, piece, &put);
            if (rc != 1) return spoiled(c, rle_tls_explain(c, SSL_get_error(c->ssl, rc)));
            if (c->tls->staged >= STAGE_FULL && (s = push(c)) != RLE_OK)
                return spoiled(c, s);
        }
    }
full:
    s = push(c);
    if (s != RLE_OK) return spoiled(c, s);
    if (total || n == 0) return (ssize_t)total;
    errno = EAGAIN;
    return -1;
}

static bool tls_pending(const rle_transport *t)
{
    return ((const rle_tls_conn *)t->self)->more;
}

static size_t tls_unsent(const rle_transport *t)
{
    const rle_tls_conn *c = t->self;
    return c->out_len - c->out_sent;
}

static rle_status tls_failure(const rle_transport *t)
{
    const rle_tls_conn *c = t->self;
    return rle_fail(c->code, "%s", c->why ? c->why : "out of memory");
}

static void free_conn(rle_tls_conn *c)
{
    SSL_free(c->ssl); /* and its BIO */
    rle_free(c->out);
    rle_free(c->early);
    rle_free(c->other);
    rle_free(c->why);
    rle_free(c);
}

static void tls_close(rle_transport *t)
{
    rle_tls_conn *c = t->self;
    ERR_clear_error();
    if (c->shaken && !c->failed) SSL_shutdown(c->ssl); /* says that nothing more comes */
    push(c);
    ERR_clear_error();
    c->below.ops->close(&c->below);
    free_conn(c);
    t->self = NULL;
    t->fd = -1;
}

static const rle_transport_ops tls_transport = {.name = "tls",
                                                .readv = tls_readv,
                                                .writev = tls_writev,
                                                .close = tls_close,
                                                .shake = tls_shake,
                                                .pending = tls_pending,
                                                .unsent = tls_unsent,
                                                .failure = tls_failure};

rle_status rle_tls_wrap(rle_tls *tls, rle_transport *t, const rle_address *other,
                        bool initiator)
{
    rle_tls_conn *c = rle_calloc(1, sizeof *c);
    if (!c) return rle_oom(sizeof *c, "connection");
    c->tls = tls;
    c->below = *t;
    c->initiator = initiator;
    c->most_before = tls->psk ? RLE_TLS_BEFORE_PSK : RLE_TLS_BEFORE;
    c->other = rle_strdup(other->shown);
    rle_status s = c->other ? RLE_OK : rle_oom(sizeof *c, "connection");
    if (s == RLE_OK && initiator) s = new_ssl(c);
    if (s == RLE_OK && initiator) s = rle_tls_expect_name(c, other);
    if (s != RLE_OK) {
        ERR_clear_error();
        free_conn(c);
        return s;
    }
    t->ops = &tls_transport;
    t->self = c;
    return RLE_OK;
}
