/* reading.c - turns of those that send long messages, and how a stream ends.
 *
 * All of them together are read about RLE_READ_LONG bytes in a turn of the loop, so that
 * the calls of others, and their own Lua, wait for a short turn, however many send at
 * once. They are read in rounds: who has been read in this round waits while there is
 * somebody who wanted to be and has not. What waits stays in the socket, which is
 * readable then, in the next turn too. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "rpc/rpc_internal.h"

/* ---- turns ---- */

bool rle_conn_receives_long(const rle_conn *conn)
{
    for (const rle_in_message *m = conn->partial; m; m = m->next)
        if (m->head.body - m->got > RLE_READ_AHEAD) return true;
    return false;
}

static size_t *late_with(rle_conn *conn)
{
    rle_rpc *rpc = conn->rpc;
    return conn->read_round == rpc->read_round ? &rpc->late_next : &rpc->late;
}

void rle_conn_leave_readers(rle_conn *conn)
{
    if (conn->late) --*late_with(conn);
    conn->late = false;
}

static void join_late(rle_conn *conn)
{
    if (!conn->late) ++*late_with(conn);
    conn->late = true;
}

bool rle_conn_may_read(rle_conn *conn)
{
    rle_rpc *rpc = conn->rpc;
    bool over = rpc->long_read >= RLE_READ_LONG;
    if (conn->read_round == rpc->read_round && !over && (!rpc->late || rpc->long_idle)) {
        rpc->read_round++;
        rpc->late += rpc->late_next;
        rpc->late_next = 0;
    }
    if (over || conn->read_round == rpc->read_round) {
        join_late(conn);
        return false;
    }
    rle_conn_leave_readers(conn);
    conn->read_round = rpc->read_round;
    return true;
}

void rle_readers_turn(rle_rpc *rpc)
{
    rpc->long_idle = rpc->long_read == 0; /* whoever was waited for does not come */
    rpc->long_read = 0;
}

/* ---- the end ---- */

void rle_conn_ended(rle_conn *conn)
{
    char reason[96] = "end of stream";
    if (conn->in_frame)
        snprintf(reason, sizeof reason, "end of stream inside a frame (%zu of %zu bytes)",
                 conn->payload_got + RLE_FRAME_HEADER,
                 (size_t)conn->frame.payload + RLE_FRAME_HEADER);
    else if (conn->head_got)
        snprintf(reason, sizeof reason, "end of stream inside a frame (%zu of %d bytes)",
                 conn->head_got, RLE_FRAME_HEADER);
    rle_conn_close(conn, reason, false);
}

void rle_conn_broken(rle_conn *conn, int why)
{
    if (why == EPROTO && conn->transport.ops->failure) {
        rle_status code = conn->transport.ops->failure(&conn->transport);
        if (conn->state == RLE_CONN_OPEN)
            rle_conn_reject(conn);
        else
            rle_handshake_broken(conn, code);
        return;
    }
    bool gone = why == ECONNRESET || why == EPIPE;
    rle_conn_close(conn, gone ? "end of stream" : strerror(why), false);
}
