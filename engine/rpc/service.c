/* service.c - calls that C makes and C answers; service.h says how it is used. */
#include "rpc/service.h"

#include <string.h>

#include "rpc/batch_internal.h"

void rle_service_enter(rle_rpc *rpc)
{
    rle_rpc_enter(rpc);
}

void rle_service_leave(rle_rpc *rpc)
{
    rle_rpc_leave(rpc);
}

rle_status rle_service_open(rle_rpc *rpc, rle_service *service)
{
    if (rpc->service)
        return rle_fail(RLE_ALREADY_EXISTS, "this worker has a service already");
    rpc->service = service;
    return RLE_OK;
}

rle_peer *rle_service_peer(rle_rpc *rpc, const char *name)
{
    rle_peer *peer = rle_peer_get(rpc, name);
    if (peer) peer->uses++;
    return peer;
}

void rle_service_peer_release(rle_peer *peer)
{
    if (peer) peer->uses--;
}

bool rle_service_connected(const rle_peer *peer)
{
    return peer->conn && !peer->conn->going_away;
}

/* ---- served ---- */

void rle_service_arrived(rle_incoming *in)
{
    rle_rpc *rpc = in->rpc;
    if (rpc->stopping) {
        rle_incoming_refuse_stopping(in);
        return;
    }
    in->service = true;
    rle_incoming_info info = {.caller = in->peer,
                              .head = in->head,
                              .deadline = in->deadline,
                              .incarnation = in->incarnation,
                              .session = in->session};
    rpc->service->call(rpc->service, in, &info);
}

void rle_service_forget(rle_incoming *in)
{
    rle_service *service = in->rpc->service;
    in->service = false;
    if (service) service->forget(service, in);
}

rle_peer *rle_service_caller(const rle_incoming *in)
{
    return in->peer;
}

uint64_t rle_service_limit(const rle_incoming *in)
{
    return in->conn->max_message; /* it is forgotten with its connection */
}

void rle_service_decoder(const rle_incoming *in, rle_decoder *d)
{
    rle_incoming_args(in, d);
}

void rle_service_reply(rle_incoming *in, rle_encoder *e)
{
    in->service = false;
    rle_incoming_answer(in, e);
}

void rle_service_fail(rle_incoming *in, rle_status code, const char *message)
{
    in->service = false;
    rle_incoming_fail_text(in, code, RLE_OUTCOME_NONE, message);
}

/* ---- made ---- */

rle_status rle_service_call(rle_rpc *rpc, const rle_call_spec *spec, rle_encoder *e,
                            rle_service_over *over, void *self, rle_future **out)
{
    return rle_rpc_call_locked(rpc, spec, e, over, self, out);
}

void rle_service_drop(rle_future *f)
{
    f->over = NULL;
    f->looked_at = true;
    rle_future_withdraw(f);
    rle_future_unref(f);
}

void rle_service_release(rle_future *f)
{
    f->over = NULL;
    f->looked_at = true;
    rle_future_unref(f);
}

rle_future_state rle_service_status(const rle_future *f)
{
    return f->state;
}

void rle_service_complete(rle_future *f, bool failed)
{
    rle_future_complete_locked(f, failed);
}

/* ---- time ---- */

rle_status rle_service_timer(rle_rpc *rpc, rle_timer *t, int64_t at)
{
    return rle_timer_arm(&rpc->loop, t, at);
}

void rle_service_timer_off(rle_rpc *rpc, rle_timer *t)
{
    rle_timer_disarm(&rpc->loop, t);
}
