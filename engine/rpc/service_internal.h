/* service_internal.h - what service.c needs of the other files of this folder, and offers
 * them; the last line of rpc_internal.h includes it. All functions want the loop's lock
 * held. */
#ifndef RLE_RPC_SERVICE_INTERNAL_H
#define RLE_RPC_SERVICE_INTERNAL_H

#include <string.h>

/* ---- service.c ---- */

static inline bool rle_service_is(const rle_rpc *rpc, const rle_call_head *head)
{
    const char *method = rpc->service ? rpc->service->method : NULL;
    return method && !head->object && !head->construct &&
           head->method_len == strlen(method) &&
           memcmp(head->method, method, head->method_len) == 0;
}
void rle_service_arrived(rle_incoming *in);
void rle_service_forget(rle_incoming *in);

/* ---- server.c ---- */

/* A decoder of its arguments. */
void rle_incoming_args(const rle_incoming *in, rle_decoder *decoder);
/* Answer it; what cannot be sent closes the connection. */
void rle_incoming_answer(rle_incoming *in, rle_encoder *e);
void rle_incoming_fail_text(rle_incoming *in, rle_status code, rle_outcome outcome,
                            const char *text);

/* ---- future.c, client.c ---- */

/* Fail it with CANCELLED unless it is over, and tell the other side. */
void rle_future_withdraw(rle_future *f);
void rle_future_complete_locked(rle_future *f, bool failed);
rle_status rle_rpc_call_locked(rle_rpc *rpc, const rle_call_spec *spec, rle_encoder *e,
                               rle_service_over *over, void *over_self, rle_future **out);

#endif
