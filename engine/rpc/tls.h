/* tls.h - TLS as a filling of the transport table.
 *
 * Who may talk is proved in one of two ways:
 *   - with a key that both sides make from the token (TLS 1.3's external pre-shared key
 * with a Diffie-Hellman exchange, so that what was recorded stays secret should the token
 *     become known). No certificates are needed;
 *   - with certificates on both sides, signed by an authority of the user's choice. The
 * side that connects also looks at the name in the certificate. Either way the token's
 * handshake (handshake.c) follows inside.
 *
 * TLS 1.3 only; no session tickets, no resumption, no early data.
 *
 * Invariants
 *   1. what OpenSSL wants to send is laid down in `stage`, which all connections of an
 *      rle_rpc share, and goes out before the function of the table returns; only what
 * the socket does not take is kept with the connection. So no write has to be repeated,
 * and an idle connection has no buffer;
 *   2. reading goes on until the blocks are full or the socket is empty: a read that gave
 *      less than asked for has left nothing behind. After one that gave all, `pending`
 * says whether something may be left.
 *
 * Everything runs with the lock of the loop. */
#ifndef RLE_RPC_TLS_H
#define RLE_RPC_TLS_H

#include "rpc/auth.h"
#include "rpc/transport.h"

typedef struct rle_tls rle_tls;

typedef struct rle_tls_options {
    bool psk;         /* the key is made from the token; else the three files, in PEM */
    const char *cert; /* ours, with those between it and the authority */
    const char *key;  /* its private key; only its owner may read the file */
    const char *ca;   /* authorities that sign the others' */
    const char *name; /* in the certificates of those we connect to; NULL: the host's */
    bool unix_too;    /* at Unix sockets as well, whose bytes never leave the machine */
} rle_tls_options;

/* INVALID_ARGUMENT, FAILED_PRECONDITION with what is wrong with the files. Copies all. */
rle_status rle_tls_new(const rle_tls_options *options, const rle_token *token,
                       rle_tls **out);
void rle_tls_free(rle_tls *tls); /* after its connections; NULL is fine */

/* Connections to or from there are encrypted. `tls` may be NULL. */
bool rle_tls_covers(const rle_tls *tls, const rle_address *at);

/* From the socket in `t` to a connection over it, which shakes hands first. On failure
 * the socket is as it was. `other`: of the other side. */
rle_status rle_tls_wrap(rle_tls *tls, rle_transport *t, const rle_address *other,
                        bool initiator);

#endif
