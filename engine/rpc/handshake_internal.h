/* handshake_internal.h - what a handshake keeps until it is done, and the refusals of the
 * last minute. Part of rpc_internal.h; what is done with it is in joining_internal.h. */
#ifndef RLE_RPC_HANDSHAKE_INTERNAL_H
#define RLE_RPC_HANDSHAKE_INTERNAL_H

#include "base/log.h"
#include "rpc/frame.h"
#include "rpc/rpc.h"
#include "rpc/transport.h"

typedef struct rle_conn rle_conn;
typedef struct rle_handshake rle_handshake;

typedef struct rle_greeting {
    uint16_t min_version, max_version;
    uint32_t dtypes, features, heartbeat_ms, timeout_ms, max_frame, pid;
    uint64_t max_message, incarnation;
    uint8_t nonce[RLE_NONCE_SIZE];
    char name[RLE_NAME_MAX + 1];
    int addresses;
    char address[RLE_REF_ADDRESSES][RLE_ADDRESS_MAX];
} rle_greeting;

/* What is needed only until the connection is open. Small until something has been
 * proved: anybody may begin one. */
struct rle_handshake {
    rle_timer timer;
    rle_greeting theirs;
    uint8_t *hello, *ack; /* payloads as they crossed; owned, NULL at first */
    size_t hello_len, ack_len;
    rle_rpc *rpc;
    rle_conn *conn;
    int64_t patience; /* it may take so long in all */
    uint32_t credit; /* given with their proof */
    uint64_t contest; /* replace.c: what the ping of the old connection carries; 0: none */
    rle_peer *contested;
    rle_handshake *contest_next, **contest_at; /* in contested->contenders */
};

/* Where the result of rle_rpc_connect goes; on that function's stack. */
typedef struct rle_connect_result {
    int64_t until; /* the handshake may take so long and no longer; 0: as long as any */
    bool done;
    rle_status status;
    bool lasting; /* of a failure: another attempt would end likewise */
    char message[512];
    char name[RLE_NAME_MAX + 1]; /* as whom the other side greeted, or "" */
    rle_peer *peer;
} rle_connect_result;

typedef struct rle_refusals {
    char from[RLE_ADDRESS_MAX]; /* the address, without a port; of IPv6 its network */
    int64_t user;               /* of this machine, who has it; or as refusals.c says */
    int64_t times[10]; /* of the last ones, a ring */
    int count, next;
    int64_t banned_until; /* or answered late */
} rle_refusals;

/* A line that was logged, or would have been within a second of it. */
typedef struct rle_repeat {
    int64_t at; /* 0: none */
    uint32_t left_out;
    rle_log_level level;
    char text[448];
} rle_repeat;

enum { RLE_REPEATS = 16 };

enum { RLE_REFUSAL_ADDRESSES = 64, RLE_REFUSALS_A_MINUTE = 10 };

#endif
