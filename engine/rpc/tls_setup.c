/* tls_setup.c - what TLS is set to: the key from the token, certificates, names; and in
 * which words a handshake fails. */
#include <arpa/inet.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "rpc/tls_internal.h"

/* Who is meant by the key is no secret: there is one. */
static const char identity[] = "rlengine";
/* A key of its own: not the token, and nothing that proves it (those begin "rlengine1").
 */
static const char key_label[] = "rlengine tls 1.3 pre-shared key";

static const char psk_suites[] = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";
static const char suites[] =
    "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384";

/* ---- the pre-shared key ---- */

static SSL_SESSION *session_of_key(SSL *ssl)
{
    static const unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};
    const rle_tls_conn *c = SSL_get_app_data(ssl);
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, aes_128_gcm_sha256);
    SSL_SESSION *session = SSL_SESSION_new();
    if (cipher && session &&
        SSL_SESSION_set1_master_key(session, c->tls->key, sizeof c->tls->key) &&
        SSL_SESSION_set1_id_context(session, (const unsigned char *)identity,
                                    sizeof identity - 1) &&
        SSL_SESSION_set_cipher(session, cipher) &&
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

static int client_key(SSL *ssl, const EVP_MD *md, const unsigned char **id,
                      size_t *id_len, SSL_SESSION **session)
{
    *session = NULL;
    if (md && EVP_MD_type(md) != NID_sha256) return 0;
    *session = session_of_key(ssl);
    if (!*session) return 0;
    *id = (const unsigned char *)identity;
    *id_len = sizeof identity - 1;
    return 1;
}

static int server_key(SSL *ssl, const unsigned char *id, size_t id_len,
                      SSL_SESSION **session)
{
    *session = NULL;
    if (id_len != sizeof identity - 1 || memcmp(id, identity, id_len) != 0) return 1;
    *session = session_of_key(ssl);
    return *session != NULL;
}

static rle_status use_key(rle_tls *tls, const rle_token *token)
{
    unsigned len = 0;
    if (!HMAC(EVP_sha256(), token->bytes, (int)token->len,
              (const unsigned char *)key_label, sizeof key_label - 1, tls->key, &len) ||
        len != sizeof tls->key)
        return rle_fail(RLE_INTERNAL, "HMAC-SHA256 is not available");
    snprintf(tls->source, sizeof tls->source, "%s", token->source);
    SSL_CTX_set_psk_use_session_callback(tls->client, client_key);
    SSL_CTX_set_psk_find_session_callback(tls->server, server_key);
    return RLE_OK;
}

/* ---- certificates ---- */

/* What OpenSSL found wrong, in its words. */
static const char *openssl_words(void)
{
    unsigned long first = ERR_peek_error();
    if (ERR_GET_LIB(first) == ERR_LIB_SYS) return strerror(ERR_GET_REASON(first));
    const char *words = ERR_reason_error_string(ERR_peek_last_error());
    return words ? words : "unknown error";
}

static rle_status wanted(const char *what, const char *path)
{
    if (path && path[0]) return RLE_OK;
    return rle_fail(
        RLE_INVALID_ARGUMENT,
        "tls: %s is missing; give cert, key and ca, or \"psk\" for a key made from "
        "the token",
        what);
}

/* A key that is locked with a password is not asked for it. */
static int no_password(char *to, int size, int writing, void *self)
{
    (void)to;
    (void)size;
    (void)writing;
    (void)self;
    return -1;
}

static rle_status read_key(const char *path, EVP_PKEY **out)
{
    int fd;
    char shown[160];
    RLE_TRY(rle_private_file("tls key", path, RLE_FAILED_PRECONDITION, shown,
                             sizeof shown, &fd));
    FILE *f = fdopen(fd, "r");
    if (!f) {
        close(fd);
        return rle_oom(0, "tls key");
    }
    ERR_clear_error();
    *out = PEM_read_PrivateKey(f, NULL, no_password, NULL);
    fclose(f);
    if (*out) return RLE_OK;
    bool locked = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_BAD_PASSWORD_READ;
    return rle_fail(
        RLE_FAILED_PRECONDITION, "tls key file %s: %s", shown,
        locked ? "it is locked with a password; store the key without one, mode 0600"
               : "no private key in PEM");
}

static rle_status use_files(SSL_CTX *ctx, const rle_tls_options *o, EVP_PKEY *key)
{
    ERR_clear_error();
    if (SSL_CTX_use_certificate_chain_file(ctx, o->cert) != 1)
        return rle_fail(RLE_FAILED_PRECONDITION, "tls certificate file %s: %s", o->cert,
                        openssl_words());
    if (SSL_CTX_use_PrivateKey(ctx, key) != 1 || SSL_CTX_check_private_key(ctx) != 1)
        return rle_fail(RLE_FAILED_PRECONDITION,
                        "tls: the key in %s is not that of the certificate in %s", o->key,
                        o->cert);
    if (SSL_CTX_load_verify_locations(ctx, o->ca, NULL) != 1)
        return rle_fail(RLE_FAILED_PRECONDITION, "tls authority file %s: %s", o->ca,
                        openssl_words());
    return RLE_OK;
}

static rle_status use_certificates(rle_tls *tls, const rle_tls_options *o)
{
    RLE_TRY(wanted("the certificate (cert)", o->cert));
    RLE_TRY(wanted("the private key (key)", o->key));
    RLE_TRY(wanted("the authority's certificate (ca)", o->ca));
    EVP_PKEY *key = NULL;
    RLE_TRY(read_key(o->key, &key));
    rle_status s = use_files(tls->client, o, key);
    if (s == RLE_OK) s = use_files(tls->server, o, key);
    EVP_PKEY_free(key);
    snprintf(tls->ca, sizeof tls->ca, "%s", o->ca);
    return s;
}

rle_status rle_tls_expect_name(rle_tls_conn *c, const rle_address *other)
{
    const rle_tls *tls = c->tls;
    const char *name = tls->name[0] ? tls->name : other->host;
    if (name[0]) {
        char *shown = rle_strdup(name);
        if (!shown) return rle_oom(strlen(name), "connection");
        rle_free(c->other);
        c->other = shown;
    }
    if (tls->psk || !name[0]) return RLE_OK; /* a Unix socket has no name */
    X509_VERIFY_PARAM *param = SSL_get0_param(c->ssl);
    unsigned char number[sizeof(struct in6_addr)];
    bool is_number =
        inet_pton(AF_INET, name, number) == 1 || inet_pton(AF_INET6, name, number) == 1;
    X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    if (is_number ? X509_VERIFY_PARAM_set1_ip_asc(param, name)
                  : X509_VERIFY_PARAM_set1_host(param, name, 0))
        return RLE_OK;
    return rle_fail(RLE_INVALID_ARGUMENT,
                    "tls: \"%s\" cannot be the name in a certificate", name);
}

/* ---- words ---- */

static rle_status bad_certificate(const rle_tls_conn *c)
{
    const char *ca = c->tls->ca;
    long why = SSL_get_verify_result(c->ssl);
    if (c->tls->psk)
        return rle_fail(RLE_UNAUTHENTICATED,
                        "tls: %s shows a certificate, this worker has the token (tls = "
                        "\"psk\"); both need the same kind",
                        c->other);
    switch (why) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
        return rle_fail(RLE_UNAUTHENTICATED, "tls: certificate of \"%s\" has expired",
                        c->other);
    case X509_V_ERR_CERT_NOT_YET_VALID:
        return rle_fail(
            RLE_UNAUTHENTICATED,
            "tls: certificate of \"%s\" is not valid yet (look at both clocks)",
            c->other);
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        return rle_fail(
            RLE_UNAUTHENTICATED,
            "tls: certificate of \"%s\" is for another name; it must name the address "
            "that is connected to, or set tls.name",
            c->other);
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
        return rle_fail(RLE_UNAUTHENTICATED,
                        "tls: certificate of \"%s\" is not signed by the authority in %s",
                        c->other, ca);
    default:
        return rle_fail(RLE_UNAUTHENTICATED, "tls: certificate of \"%s\": %s", c->other,
                        X509_verify_cert_error_string(why));
    }
}

static rle_status wrong_token(const rle_tls_conn *c)
{
    if (!c->initiator) return rle_fail(RLE_UNAUTHENTICATED, "wrong token");
    return rle_fail(RLE_UNAUTHENTICATED, "%s refused the token in %s", c->other,
                    c->tls->source);
}

static rle_status other_kind(const rle_tls_conn *c)
{
    return rle_fail(
        RLE_UNAUTHENTICATED,
        "tls: %s and this worker have no way to prove who they are in common: both "
        "need the token (tls = \"psk\"), or both certificates",
        c->other);
}

/* The other side ended the handshake, and said why by a number (RFC 8446, 6.2). */
static rle_status alert(const rle_tls_conn *c, int number)
{
    const char *what = SSL_alert_desc_string_long(number);
    switch (number) {
    case SSL_AD_ILLEGAL_PARAMETER:
    case SSL_AD_DECRYPT_ERROR:
    case SSL_AD_UNKNOWN_PSK_IDENTITY:
        if (c->tls->psk) return wrong_token(c);
        if (number != SSL_AD_DECRYPT_ERROR) break;
        return rle_fail(
            RLE_UNAUTHENTICATED,
            "tls: %s refused this worker's certificate: it knows another authority of "
            "the same name",
            c->other);
    case SSL_AD_HANDSHAKE_FAILURE:
        return other_kind(c);
    case SSL_AD_CERTIFICATE_EXPIRED:
        return rle_fail(RLE_UNAUTHENTICATED,
                        "tls: %s refused this worker's certificate: it has expired",
                        c->other);
    case SSL_AD_UNKNOWN_CA:
        if (c->tls->psk) return other_kind(c);
        return rle_fail(
            RLE_UNAUTHENTICATED,
            "tls: %s refused this worker's certificate: it does not know the authority "
            "that signed it",
            c->other);
    case SSL_AD_CERTIFICATE_REQUIRED:
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_CERTIFICATE_REVOKED:
        if (c->tls->psk) return other_kind(c);
        return rle_fail(RLE_UNAUTHENTICATED,
                        "tls: %s refused this worker's certificate: %s", c->other, what);
    default:
        break;
    }
    return rle_fail(RLE_UNAVAILABLE, "tls: %s ended the connection: %s", c->other, what);
}

/* Bytes that are no TLS at all. */
static rle_status not_tls(const rle_tls_conn *c)
{
    if (memcmp(c->first, "RLE1", sizeof c->first) == 0)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "it speaks without tls, which is set here; set tls there too");
    char shown[sizeof c->first + 1] = {0};
    for (size_t i = 0; i < sizeof c->first; i++)
        shown[i] = c->first[i] >= ' ' && c->first[i] <= '~' && c->first[i] != '"'
                       ? (char)c->first[i]
                       : '.';
    return rle_fail(RLE_INVALID_ARGUMENT, "not a tls peer (first bytes \"%s\")", shown);
}

rle_status rle_tls_explain(const rle_tls_conn *c, int kind)
{
    unsigned long e = ERR_peek_last_error();
    int reason = ERR_GET_REASON(e);
    if (c->too_much)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "tls: more than %zu bytes before the handshake was done",
                        c->most_before);
    if (c->socket_errno && c->socket_errno != ECONNRESET)
        return rle_fail(RLE_UNAVAILABLE, "%s", strerror(c->socket_errno));
    if (c->ended || c->socket_errno) {
        if (c->shaken) return rle_fail(RLE_UNAVAILABLE, "end of stream");
        return rle_fail(RLE_UNAVAILABLE, "end of stream in the tls handshake%s",
                        c->initiator ? "; does the other side have tls set, too?" : "");
    }
    if (kind == SSL_ERROR_SSL && ERR_GET_LIB(e) == ERR_LIB_SSL) {
        if (reason >= SSL_AD_REASON_OFFSET)
            return alert(c, reason - SSL_AD_REASON_OFFSET);
        switch (reason) {
        case SSL_R_CERTIFICATE_VERIFY_FAILED:
            return bad_certificate(c);
        case SSL_R_BINDER_DOES_NOT_VERIFY:
            return wrong_token(c);
        case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
            return rle_fail(RLE_UNAUTHENTICATED, "tls: it showed no certificate");
        case SSL_R_NO_SHARED_CIPHER:
        case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
            return other_kind(c);
        case SSL_R_WRONG_VERSION_NUMBER:
        case SSL_R_HTTP_REQUEST:
            if (!c->shaken) return not_tls(c);
            break;
        default:
            break;
        }
    }
    return rle_fail(c->shaken ? RLE_DATA_LOSS : RLE_UNAVAILABLE, "tls: %s",
                    openssl_words());
}

rle_status rle_tls_accepted(const rle_tls_conn *c)
{
    if (SSL_version(c->ssl) != TLS1_3_VERSION)
        return rle_fail(RLE_UNAUTHENTICATED, "tls: %s does not speak TLS 1.3", c->other);
    /* A key that both had counts as a session taken up again. */
    if (c->tls->psk ? SSL_session_reused(c->ssl) != 1
                    : SSL_get_verify_result(c->ssl) != X509_V_OK)
        return other_kind(c);
    return RLE_OK;
}

/* ---- life ---- */

static SSL_CTX *new_context(const SSL_METHOD *method, bool psk)
{
    SSL_CTX *ctx = SSL_CTX_new(method);
    if (!ctx) return NULL;
    SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION |
                                 SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_session_id_context(ctx, (const unsigned char *)identity,
                                   sizeof identity - 1);
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                              SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(ctx, 1);
    SSL_CTX_set_max_cert_list(ctx, RLE_TLS_BEFORE);
    /* Also with a key from the token: then no certificate is good enough. */
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    if (SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_num_tickets(ctx, 0) != 1 ||
        SSL_CTX_set_ciphersuites(ctx, psk ? psk_suites : suites) != 1) {
        SSL_CTX_free(ctx);
        return NULL;
    }
    return ctx;
}

rle_status rle_tls_new(const rle_tls_options *o, const rle_token *token, rle_tls **out)
{
    if (o->name && strlen(o->name) >= sizeof((rle_tls *)0)->name)
        return rle_fail(RLE_INVALID_ARGUMENT, "tls: the name has more than 255 letters");
    if (o->psk && (o->cert || o->key || o->ca || o->name))
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "tls: \"psk\" goes without cert, key, ca and name; use one kind");
    rle_tls *tls = rle_calloc(1, sizeof *tls);
    if (!tls) return rle_oom(sizeof *tls, "tls");
    tls->psk = o->psk;
    tls->unix_too = o->unix_too;
    snprintf(tls->name, sizeof tls->name, "%s", o->name ? o->name : "");
    ERR_clear_error();
    tls->method = rle_tls_bio_method();
    tls->client = new_context(TLS_client_method(), o->psk);
    tls->server = new_context(TLS_server_method(), o->psk);
    rle_status s = RLE_OK;
    if (!tls->method || !tls->client || !tls->server)
        s = rle_fail(RLE_INTERNAL, "tls: TLS 1.3 is not available: %s", openssl_words());
    if (s == RLE_OK) s = o->psk ? use_key(tls, token) : use_certificates(tls, o);
    ERR_clear_error();
    if (s != RLE_OK) {
        rle_tls_free(tls);
        return s;
    }
    *out = tls;
    return RLE_OK;
}

void rle_tls_free(rle_tls *tls)
{
    if (!tls) return;
    SSL_CTX_free(tls->client);
    SSL_CTX_free(tls->server);
    BIO_meth_free(tls->method);
    OPENSSL_cleanse(tls->key, sizeof tls->key);
    rle_free(tls);
}

bool rle_tls_covers(const rle_tls *tls, const rle_address *at)
{
    return tls && (!at->is_unix || tls->unix_too);
}
