/* tls_internal.h - what tls.c (bytes) and tls_setup.c (keys, certificates, words) share.
 */
#ifndef RLE_RPC_TLS_INTERNAL_H
#define RLE_RPC_TLS_INTERNAL_H

#include <openssl/ssl.h>

#include "rpc/tls.h"

enum {
    RLE_TLS_STAGE = 192 << 10,
    /* Bytes read from somebody who has not proved anything. */
    RLE_TLS_BEFORE_PSK = 4096,
    RLE_TLS_BEFORE = 32 << 10, /* certificates and those that signed them */
    RLE_TLS_KEY = 32
};

struct rle_tls {
    SSL_CTX *client, *server;
    BIO_METHOD *method;
    bool psk, unix_too;
    uint8_t key[RLE_TLS_KEY];
    char source[160]; /* of the token, for messages */
    char ca[160];
    char name[256]; /* "" = the address's */
    size_t staged;
    uint8_t stage[RLE_TLS_STAGE];
};

typedef struct rle_tls_conn {
    rle_tls *tls;
    SSL *ssl;
    rle_transport below; /* the socket */
    bool initiator;
    bool shaken;   /* the handshake is done */
    bool drained;  /* the socket has nothing more, as far as the present call knows */
    bool more;     /* the last read did not come to the end of what is there */
    bool ended;    /* the other side closed the socket */
    bool mute;     /* writing fails */
    bool failed;   /* for the reason in `why` */
    bool too_much; /* came before the handshake was done */
    int socket_errno, write_errno; /* of the socket, for good */
    uint8_t first[4]; /* bytes that came */
    size_t received, most_before;
    uint8_t
        *early; /* the first record, as much of it as has come, before there is an SSL */
    size_t early_len, early_read;
    uint8_t *out; /* encrypted, not yet taken by the socket */
    size_t out_len, out_sent;
    char *other; /* in messages; owned */
    rle_status code;
    char *why; /* owned; NULL when there was no memory for it */
} rle_tls_conn;

BIO_METHOD *rle_tls_bio_method(void);

/* Say what SSL_get_error's `kind` was about, and return its code: UNAUTHENTICATED when
 * one side has not convinced the other, UNAVAILABLE when the connection is gone,
 * INVALID_ARGUMENT for bytes that are not TLS. */
rle_status rle_tls_explain(const rle_tls_conn *c, int kind);
/* The handshake is done: was it done with what we ask for? */
rle_status rle_tls_accepted(const rle_tls_conn *c);
/* The certificate of who is connected to has to name it. */
rle_status rle_tls_expect_name(rle_tls_conn *c, const rle_address *other);

#endif
