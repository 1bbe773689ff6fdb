/* joining_internal.h - workers that come and go: what peer.c, handshake.c, refusals.c, replace.c,
 * listen.c, link.c and lost.c have for the other files of engine/rpc. Comes with
 * rpc_internal.h.
 *
 * All of it wants the loop's lock held. */
#ifndef RLE_RPC_JOINING_INTERNAL_H
#define RLE_RPC_JOINING_INTERNAL_H

#include "rpc/rpc_internal.h"

/* ---- peer.c ---- */

/* It has come or gone. */
void rle_peer_changed(rle_peer *peer);
/* How many workers that are gone are remembered although nothing needs them, about. */
enum { RLE_PEERS_REMEMBERED = 1024 };
/* For the owner, between turns, with empty trash: forget some of those beyond that. */
void rle_peers_forget(rle_rpc *rpc);
/* rle_rpc_who_is_here, with the lock. */
void rle_peers_here(const rle_rpc *rpc, const char *wanted, char *out, size_t size);
/* The worker of that name, made if need be; NULL when memory ran out. */
rle_peer *rle_peer_get(rle_rpc *rpc, const char *name);
/* Where it listens, in place of what was known; none is known when memory ran out. */
void rle_peer_listens(rle_peer *peer, const char (*addresses)[RLE_ADDRESS_MAX],
                      int count);
void rle_peer_free(rle_peer *peer);

/* ---- handshake.c ---- */

void rle_handshake_begin(rle_conn *conn); /* the socket is connected */
void rle_handshake_secure(rle_conn *conn); /* go on with that of the transport */
/* The transport failed before the connection was open; the message is rle_message(). */
void rle_handshake_broken(rle_conn *conn, rle_status code);
/* What has come is no handshake, or no frame; the message is rle_message(). */
void rle_handshake_spoiled(rle_conn *conn, rle_status code);
/* HELLO, HELLO_ACK, AUTH, ERROR before the connection is open. */
void rle_handshake_frame(rle_conn *conn, const rle_frame *f, const uint8_t *payload);
void rle_handshake_free(rle_conn *conn);
/* The initiator's end of it: the message is rle_message(). */
void rle_handshake_give_up(rle_conn *conn, rle_status code);
/* The time for it runs from now on. */
rle_status rle_handshake_time(rle_conn *conn);

/* Acceptor: its proof is good. Let it in, unless its name is taken. */
void rle_handshake_admit(rle_conn *conn);
/* Tell the other side why not, and close. The message is rle_message(). */
void rle_handshake_refuse(rle_conn *conn, rle_status code);

/* ---- replace.c ---- */

/* The worker's name is taken by `old`. Same process: `old` is closed; true. Another one:
 * `old` is asked whether it lives, and until that is known `conn` waits; false. */
bool rle_replace(rle_conn *conn, rle_conn *old);
void rle_contest_answered(rle_conn *old, uint64_t number); /* by a PONG */
/* The old connection is gone: whoever waits for its name goes on. */
void rle_contest_settle(rle_peer *peer);
void rle_contest_leave(rle_handshake *h); /* it waits no more; or never did */

/* ---- refusals.c ---- */

/* Somebody who has proved nothing is sent away: is it to be logged? */
bool rle_stranger_told(rle_rpc *rpc);
/* Once a minute: log how many were not. */
void rle_strangers_count(rle_rpc *rpc, int64_t now);
/* Somebody could not prove who it is. */
void rle_refusal_log(rle_conn *conn, const char *why);
/* Too many refusals came from there: do not even listen. `fd`: the connection. *pause: it
 * may talk when so much time has passed. */
bool rle_refusal_banned(rle_rpc *rpc, int fd, const rle_address *address, int64_t *pause);

/* ---- owner.c, owner_table.c ---- */

typedef enum {
    RLE_OWNER_NONE, /* it is on another machine, or closed already */
    RLE_OWNER_TOLD,
    RLE_OWNER_UNKNOWN /* it is on this machine, which does not tell */
} rle_end_owner;

/* The user whose process has the other end of a TCP connection open. Costs some system
 * calls. */
rle_end_owner rle_socket_owner(int fd, uid_t *uid);
/* For owner.c: the same by reading /proc/net, for at most 20 ms. */
rle_end_owner rle_socket_owner_in_table(const struct sockaddr_storage *theirs,
                                        const struct sockaddr_storage *mine, uid_t *uid);

/* A connection to that worker which we are making, or NULL. Of rle_rpc_connect's it is
 * known whom it leads to when the other side has greeted. */
rle_conn *rle_own_attempt(const rle_rpc *rpc, const rle_peer *peer,
                          const rle_greeting *theirs);
/* It is not needed: the worker is here over another one. */
void rle_attempt_drop(rle_conn *mine, rle_peer *peer);

/* ---- repeats.c ---- */

/* Log a line that other workers bring about: the same one once a second at most. */
void rle_log_about(rle_rpc *rpc, rle_log_level level, const char *fmt, ...)
    RLE_PRINTF(3, 4);
/* How often those were that have been left out; `all`: whatever is not said yet. */
void rle_repeats_tell(rle_rpc *rpc, int64_t now, bool all);

/* ---- listen.c ---- */

void rle_half_open_less(rle_rpc *rpc); /* one of those accepted is open now, or gone */

/* Begin to connect. `result` (with `until` set) or `peer`, may be NULL: who is told what
 * becomes of it. */
rle_status rle_connect_begin(rle_rpc *rpc, const rle_address *to,
                             rle_connect_result *result, rle_peer *peer, rle_conn **out);
/* Connect on our own account to a worker whose address is known. */
void rle_peer_open(rle_peer *peer);
/* That did not come about: try its other addresses. False: there is none left. */
bool rle_peer_open_next(rle_peer *peer);

/* connect(2) failed for the reason `why`, an errno. Returns UNAVAILABLE when that may
 * pass. */
rle_status rle_connect_failed(const char *to, int why);

/* ---- link.c ---- */

/* For a connection that is about to be made; NULL: none is wanted, or (*s) no memory. */
rle_link *rle_link_new(rle_rpc *rpc, const rle_address *to, rle_status *s);
/* It is to be looked for there. NULL is fine. */
void rle_link_aim(rle_link *link, const rle_address *to);
/* The connection stands. NULL is fine. */
void rle_link_attach(rle_link *link, rle_peer *peer);
void rle_link_free(rle_link *link); /* NULL is fine */
/* Its worker is being looked for. */
bool rle_link_seeks(const rle_peer *peer);
/* It will be, when `conn` is lost now. */
bool rle_link_keeps(const rle_conn *conn);
/* Begin to look for it. `replaced`: whoever has taken its place is about to come in, so
 * nothing is logged of that unless he does not. */
void rle_link_lost(rle_peer *peer, bool replaced);
void rle_link_joined(rle_peer *peer); /* it is here, whoever made the connection */
/* A connection made for it has failed; it is tried again later. */
void rle_link_missed(rle_peer *peer, const char *why);
/* It answered that it will not have us: the message is rle_message(). */
void rle_link_refused(rle_peer *peer, rle_status code);
void rle_link_end_all(rle_rpc *rpc); /* nobody is looked for any more */

/* ---- lost.c ---- */

/* The open connection of a worker is over: its calls fail, its references are given back.
 */
void rle_peer_lost(rle_conn *conn, const char *reason, bool quiet);

#endif
