/* auth.h - the token every worker of a group knows, and the proofs that it is known.
 *
 * The token never crosses the wire. Each side sends a nonce; each proves the token with
 * HMAC-SHA256 over its role and both greetings, so neither versions, names nor nonces can
 * be changed on the way, and no proof is of use a second time or to the other side. This
 * says who is there; it does not protect what is said afterwards from somebody who sits on
 * the network. No thread safety needed: nothing here has state. */
#ifndef RLE_RPC_AUTH_H
#define RLE_RPC_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    RLE_TOKEN_MIN = 32,
    RLE_TOKEN_MAX = 1024,
    RLE_NONCE_SIZE = 32,
    RLE_PROOF_SIZE = 32
};

typedef struct rle_token {
    uint8_t bytes[RLE_TOKEN_MAX];
    size_t len;
    char source[160]; /* for messages: "~/.config/rlengine/token" */
} rle_token;

/* Open a file that holds a secret, a "token" or a "tls key": `code` unless it is a file
 * that only its owner can read, and the owner is this user or root. `shown` gets the path
 * for messages. */
rle_status rle_private_file(const char *what, const char *path, rle_status code,
                            char *shown, size_t size, int *fd);

/* UNAUTHENTICATED with the reason: missing, readable by others, too short. */
rle_status rle_token_from_bytes(const void *bytes, size_t len, const char *source,
                                rle_token *out);
rle_status rle_token_from_file(const char *path, rle_token *out);
/* Reads to the end of the stream and closes `fd`, also on failure. */
rle_status rle_token_from_fd(int fd, rle_token *out);
/* RLENGINE_TOKEN_FILE, or rlengine/token under $XDG_CONFIG_HOME or ~/.config. */
rle_status rle_token_default(rle_token *out);
/* A new file with mode 0600 and a fresh token of 64 hexadecimal digits. ALREADY_EXISTS when
 * there is a file. */
rle_status rle_token_create(const char *path);
void rle_token_forget(rle_token *t); /* overwrite it */

/* From the system's generator. INTERNAL where it has none. */
rle_status rle_random_bytes(void *out, size_t n);

/* HMAC-SHA256(token, "rlengine1" | role | len hello | hello | len ack | ack). */
rle_status rle_auth_proof(const rle_token *token, char role, const void *hello,
                          size_t hello_len, const void *ack, size_t ack_len,
                          uint8_t out[RLE_PROOF_SIZE]);
/* In a time that does not depend on the bytes. */
bool rle_auth_equal(const uint8_t a[RLE_PROOF_SIZE], const uint8_t b[RLE_PROOF_SIZE]);
bool rle_auth_same(const void *a, const void *b, size_t n);

#endif
