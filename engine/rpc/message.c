/* message.c - bodies of received messages: who keeps their bytes, and where the tensors of long
 * ones go. */
#include <string.h>

#include "base/log.h"
#include "rpc/rpc_internal.h"

static rle_status copy_out(const rle_msg *m, rle_msg *keep)
{
    uint8_t *block = rle_malloc(m->size);
    if (!block) return rle_oom(m->size, "frame body");
    memcpy(block, m->data, m->size);
    *keep = *m;
    keep->data = keep->block = block;
    keep->borrowed = 0;
    return RLE_OK;
}

rle_status rle_message_keep(rle_rpc *rpc, const rle_msg *m, rle_msg *keep)
{
    if (m->block) {
        *keep = *m;
        keep->borrowed = 0;
        return RLE_OK;
    }
    if (rle_evloop_on_guard() || rpc->no_borrow) return copy_out(m, keep);
    if (rpc->borrowed_count == rpc->borrowed_cap) {
        size_t cap = rpc->borrowed_cap * 2;
        rle_msg **list = rle_realloc(rpc->borrowed, cap * sizeof *list);
        if (!list) return rle_oom(cap * sizeof *list, "messages");
        rpc->borrowed = list;
        rpc->borrowed_cap = cap;
    }
    *keep = *m;
    rpc->borrowed[rpc->borrowed_count++] = keep;
    rpc->borrows++;
    keep->borrowed = rpc->borrowed_count;
    return RLE_OK;
}

static void unborrow(rle_rpc *rpc, rle_msg *m)
{
    rle_msg *last = rpc->borrowed[--rpc->borrowed_count];
    rpc->borrowed[m->borrowed - 1] = last;
    last->borrowed = m->borrowed;
    m->borrowed = 0;
    if (!rpc->borrowed_count) rpc->scratch_used = 0;
}

void rle_message_settle(rle_rpc *rpc)
{
    while (rpc->borrowed_count) {
        rle_msg *m = rpc->borrowed[rpc->borrowed_count - 1];
        rle_msg own;
        /* Without memory it stays where it is, and reading goes on behind it. */
        if (copy_out(m, &own) != RLE_OK) return;
        unborrow(rpc, m);
        *m = own;
    }
}

void rle_message_drop_bytes(rle_rpc *rpc, rle_msg *m)
{
    if (m->borrowed) unborrow(rpc, m);
    rle_free(m->block);
    rle_placed_free(rpc, m->placed);
    *m = (rle_msg){0};
}

void rle_msg_decoder(const rle_msg *m, rle_decoder *d)
{
    rle_decoder_init(d, m->data, m->size, m->values, m->tensors);
    d->placed = m->placed;
}

/* The guard may come here: tensors are for the owner to let go of. */
void rle_placed_free(rle_rpc *rpc, rle_placed *placed)
{
    if (!placed) return;
    for (int i = 0; i < placed->count; i++) {
        if (!placed->tensor[i].handle) continue;
        if (rpc->orphan_count == rpc->orphan_cap) {
            size_t cap = rpc->orphan_cap ? rpc->orphan_cap * 2 : 64;
            void **list = rle_realloc(rpc->orphans, cap * sizeof *list);
            if (!list) {
                rle_log(RLE_LOG_ERROR, "out of memory: a received tensor stays");
                continue;
            }
            rpc->orphans = list;
            rpc->orphan_cap = cap;
        }
        rpc->orphans[rpc->orphan_count++] = placed->tensor[i].handle;
    }
    rle_free(placed->block);
    rle_free(placed);
}

/* ---- places for tensors ---- */

void rle_rpc_set_drop_handle(rle_rpc *rpc, void (*drop)(void *handle))
{
    rpc->drop_handle = drop;
}

static void note_tensor(void *self, const rle_value *v)
{
    rle_placement *p = self;
    if (v->kind == RLE_VALUE_TENSOR && p->count < RLE_WIRE_TENSORS)
        p->tensor[p->count++] = v->u.tensor;
}

/* The tensors its values name. */
static rle_status list_tensors(const rle_in_message *m, rle_placement *p)
{
    rle_decoder d;
    uint16_t count;
    p->count = 0;
    p->serial = m->serial;
    p->is_call = m->head.type == RLE_FRAME_CALL;
    rle_decoder_init(&d, m->body, m->head.body, m->head.values, m->head.tensors);
    if (m->head.type == RLE_FRAME_CALL) {
        RLE_TRY(rle_decode_call_head(&d, &p->head));
        count = p->head.args;
    } else {
        RLE_TRY(rle_decode_result_head(&d, &count));
    }
    for (; count; count--) RLE_TRY(rle_decode_skip(&d, note_tensor, p));
    return rle_decode_end(&d);
}

bool rle_rpc_next_placement(rle_rpc *rpc, rle_placement *p)
{
    bool found = false;
    rle_rpc_enter(rpc);
    for (rle_conn *conn = rpc->conns; conn && !found; conn = conn->next) {
        if (!conn->placing) continue;
        /* Malformed values get no memory; whoever reads the message will say so. */
        found = list_tensors(conn->current, p) == RLE_OK;
        p->caller = conn->peer;
        if (!found) rle_conn_placed(conn, NULL);
        break;
    }
    rle_rpc_leave(rpc);
    return found;
}

static rle_placed *make_placed(const rle_placement *p, void *const *data, void *const *handles)
{
    size_t size = sizeof(rle_placed) + (size_t)p->count * sizeof(rle_placed_tensor), own = 0;
    rle_placed *placed = rle_malloc(size);
    if (!placed) return NULL;
    *placed = (rle_placed){.count = p->count};
    for (int i = 0; i < p->count; i++) {
        placed->tensor[i] = (rle_placed_tensor){.at = p->tensor[i].at,
                                                .size = p->tensor[i].size,
                                                .data = data[i],
                                                .handle = handles[i]};
        if (!data[i]) own += rle_align64(p->tensor[i].size);
    }
    if (!own) return placed;
    placed->block = rle_malloc(own);
    if (!placed->block) {
        rle_free(placed);
        return NULL;
    }
    own = 0;
    for (int i = 0; i < p->count; i++) {
        if (placed->tensor[i].data) continue;
        placed->tensor[i].data = placed->block + own;
        own += rle_align64(p->tensor[i].size);
    }
    return placed;
}

bool rle_rpc_place(rle_rpc *rpc, const rle_placement *p, void *const *data,
                   void *const *handles)
{
    bool placed_them = false;
    rle_rpc_enter(rpc);
    rle_conn *conn = rpc->conns;
    while (conn && !(conn->placing && conn->current->serial == p->serial)) conn = conn->next;
    if (conn) {
        rle_placed *placed = make_placed(p, data, handles);
        placed_them = placed != NULL;
        rle_conn_placed(conn, placed);
    }
    rle_rpc_leave(rpc);
    return placed_them;
}
