/* comm.c - collectives of tensors: into one block of bytes, and the result back.
 *
 * The block is a tensor of the CPU, so it comes from that device's pool and is on the
 * account of whoever asked. A work holds it and its tensors until it is freed; one that
 * is let go of before it is over is only marked, and freed by the next function here. */
#include "comm/comm.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "comm/comm_internal.h"

struct rle_comm_work {
    rle_comm *comm;
    rle_comm_work *next, **at; /* in comm->works */
    const rle_comm_ops *ops;
    rle_comm_task *task;
    rle_comm_kind kind;
    int ranks, rank;
    bool keep; /* the result is not this rank's to have */
    bool let_go;
    bool lends;        /* the tensor is sent from where it is */
    bool moved;        /* the tensor has the block's memory, and the block its own */
    rle_tensor *block; /* NULL: there are no bytes */
    rle_tensor *own;   /* room for our parts, where they are not sent from the block */
    rle_tensor *input; /* what is sent, where it lies apart from the block */
    rle_tensor **tensors;
    int count;
};

static const char *const op_names[] = {"sum", "mean", "min", "max", "prod"};
static const char *const kind_names[] = {"allreduce", "reduce", "broadcast", "allgather",
                                         "barrier"};

const char *rle_comm_op_name(rle_comm_op op)
{
    return op_names[op];
}

rle_status rle_comm_op_parse(const char *name, rle_comm_op *out)
{
    for (int i = 0; i <= RLE_COMM_PROD; i++) {
        if (strcmp(name, op_names[i]) != 0) continue;
        *out = (rle_comm_op)i;
        return RLE_OK;
    }
    return rle_fail(
        RLE_INVALID_ARGUMENT,
        "unknown operation \"%.40s\"; there are \"sum\", \"mean\", \"min\", \"max\" "
        "and \"prod\"",
        name);
}

/* ---- what it takes ---- */

static size_t bytes_of(const rle_tensor *t)
{
    return (size_t)rle_tensor_numel(t) * rle_dtype_size(t->a.dtype);
}

static bool combines(rle_comm_kind kind)
{
    return kind == RLE_COMM_ALL_REDUCE || kind == RLE_COMM_REDUCE;
}

static bool is_expanded(const rle_tensor *t)
{
    for (int i = 0; i < t->a.ndim; i++)
        if (t->a.stride[i] == 0 && t->a.shape[i] > 1) return true;
    return false;
}

static rle_status check_tensor(const rle_comm_call *call, int i)
{
    const char *what = kind_names[call->kind];
    const rle_tensor *t = call->tensors[i];
    rle_dtype dtype = t->a.dtype, first = call->tensors[0]->a.dtype;
    if (dtype != first)
        return rle_fail(
            RLE_INVALID_ARGUMENT,
            "%s: tensor %d is %s and tensor 1 %s: one collective is of one dtype", what,
            i + 1, rle_dtype_name(dtype), rle_dtype_name(first));
    if (call->kind == RLE_COMM_ALL_GATHER) return RLE_OK;
    if (call->grad_enabled && (t->requires_grad || t->grad_fn))
        return rle_fail(
            RLE_FAILED_PRECONDITION,
            "%s changes its tensors in place, and tensor %d records gradients: call "
            "it inside rl.no_grad, or with what is in its .grad or behind its "
            ":detach()",
            what, i + 1);
    if (is_expanded(t))
        return rle_fail(
            RLE_INVALID_ARGUMENT,
            "%s changes its tensors in place, and elements of tensor %d, which was "
            "expanded, share their memory",
            what, i + 1);
    return RLE_OK;
}

static rle_status check_call(const rle_comm_group *g, const rle_comm_call *call)
{
    const char *what = kind_names[call->kind];
    if (call->root < 0 || call->root >= g->size)
        return rle_fail(RLE_INVALID_ARGUMENT, "%s: there is no rank %d in a group of %d",
                        what, call->root, g->size);
    if (call->kind == RLE_COMM_BARRIER) return RLE_OK;
    if (call->count < 1) return rle_fail(RLE_INVALID_ARGUMENT, "%s of no tensor", what);
    for (int i = 0; i < call->count; i++) RLE_TRY(check_tensor(call, i));
    rle_dtype dtype = call->tensors[0]->a.dtype;
    if (!combines(call->kind)) return RLE_OK;
    unsigned takes = call->op == RLE_COMM_MEAN ? RLE_DTYPES_FLOAT : RLE_DTYPES_NUM;
    if (call->op == RLE_COMM_MIN || call->op == RLE_COMM_MAX)
        takes |= RLE_DTYPE_BIT(RLE_BOOL);
    if (!(takes & RLE_DTYPE_BIT(dtype)))
        return rle_fail(RLE_INVALID_ARGUMENT, "%s: there is no %s of %s%s", what,
                        op_names[call->op], rle_dtype_name(dtype),
                        dtype == RLE_BOOL
                            ? "; \"max\" is whether any is true, \"min\" whether all"
                        : call->op == RLE_COMM_MEAN ? "; take the sum"
                                                    : "");
    return RLE_OK;
}

/* ---- what it says of itself ---- */

static void set_title(rle_collective *c, const rle_comm_group *g,
                      const rle_comm_call *call)
{
    if (call->name)
        snprintf(c->title, sizeof c->title, "%s \"%.*s\"", kind_names[call->kind],
                 RLE_COMM_TITLE - 20, call->name);
    else
        snprintf(c->title, sizeof c->title, "%s number %" PRIu64, kind_names[call->kind],
                 g->begun + 1);
}

enum { SHAPES_SHOWN = 4 };

/* "sum of f32[4,2], f32[2]"; of long lists some and what tells others apart. */
static void set_spec(rle_collective *c, const rle_comm_call *call)
{
    char shape[128];
    uint64_t all = 0;
    int64_t elements = 0;
    size_t at = 0, room = sizeof c->spec;
    if (combines(call->kind))
        at += (size_t)snprintf(c->spec, room, "%s", op_names[call->op]);
    if (call->kind == RLE_COMM_REDUCE || call->kind == RLE_COMM_BROADCAST)
        at += (size_t)snprintf(c->spec + at, room - at, "%s%s rank %d", at ? " " : "",
                               call->kind == RLE_COMM_REDUCE ? "to" : "from", call->root);
    for (int i = 0; i < call->count; i++) {
        rle_array_describe(&call->tensors[i]->a, shape, sizeof shape);
        all = all * 31 + rle_hash_name(shape);
        elements += rle_tensor_numel(call->tensors[i]);
        if (i < SHAPES_SHOWN && at < room - 110)
            at += (size_t)snprintf(c->spec + at, room - at, "%s%.40s",
                                   i    ? ", "
                                   : at ? " of "
                                        : "of ",
                                   shape);
    }
    if (call->count > SHAPES_SHOWN)
        snprintf(c->spec + at, room - at,
                 ", ... (%d tensors, %" PRId64 " elements, shapes %08x)", call->count,
                 elements, (unsigned)(all ^ all >> 32));
}

/* ---- life ---- */

static void free_work(rle_comm_work *w)
{
    for (int i = 0; i < w->count; i++) rle_tensor_release(w->tensors[i]);
    rle_tensor_release(w->block);
    rle_tensor_release(w->own);
    rle_tensor_release(w->input);
    *w->at = w->next;
    if (w->next) w->next->at = w->at;
    w->comm->work_count--;
    rle_free(w->tensors);
    rle_free(w);
}

/* Those that were let go of and are over by now. */
static void sweep(rle_comm *comm)
{
    for (rle_comm_work *w = comm->works, *next; w; w = next) {
        next = w->next;
        if (!w->let_go || (w->task && !w->ops->idle(w->task))) continue;
        if (w->task) w->ops->free_task(w->task);
        free_work(w);
    }
}

/* Its tensor is about to be the caller's again, and may still be read for a while: it
 * gets the block's memory, with what is in it. The block has no other use by then. */
static void keep_what_is_sent(rle_comm_work *w)
{
    if (w->moved || !rle_tensor_may_move(w->tensors[0])) return;
    w->moved = true;
    rle_tensor_exchange(w->tensors[0], w->block);
    memcpy(w->tensors[0]->a.data, w->block->a.data, bytes_of(w->tensors[0]));
}

void rle_comm_work_free(rle_comm_work *w)
{
    w->let_go = true;
    if (!w->lends || !w->task || w->ops->idle(w->task)) return;
    w->ops->let_go(w->task);
    keep_what_is_sent(w);
}

static void close_works(rle_comm *comm)
{
    while (comm->works) {
        rle_comm_work *w = comm->works;
        if (w->task) rle_comm_round_free((rle_comm_round *)w->task, true);
        free_work(w);
    }
}

size_t rle_comm_works(rle_comm *comm)
{
    sweep(comm);
    return comm->work_count;
}

void rle_comm_group_free(rle_comm_group *g)
{
    g->ops->free_group(g);
}

static rle_status new_work(rle_comm_group *g, const rle_comm_call *call,
                           rle_comm_work **out)
{
    rle_comm *comm = g->comm;
    rle_comm_work *w = rle_calloc(1, sizeof *w);
    rle_tensor **list = w ? rle_malloc(((size_t)call->count + 1) * sizeof *list) : NULL;
    if (!list) {
        rle_free(w);
        return rle_oom(sizeof *w, "collective");
    }
    *w = (rle_comm_work){.comm = comm,
                         .next = comm->works,
                         .at = &comm->works,
                         .ops = g->ops,
                         .kind = call->kind,
                         .ranks = g->size,
                         .rank = g->rank,
                         .keep = call->kind == RLE_COMM_REDUCE && call->root != g->rank,
                         .tensors = list};
    if (w->next) w->next->at = &w->next;
    comm->works = w;
    comm->close_works = close_works;
    comm->work_count++;
    for (; w->count < call->count; w->count++)
        list[w->count] = rle_tensor_retain(call->tensors[w->count]);
    *out = w;
    return RLE_OK;
}

/* ---- bytes ---- */

enum { LARGE = 256 << 10 }; /* to copy less is not worth the room for our parts */
static uint8_t none; /* where those of a collective without any are: NULL + 0 is undefined */

/* A single large one of which nothing else knows where it is: it is sent from there. */
static rle_status lend(const rle_comm_group *g, rle_comm_work *w, rle_collective *c)
{
    int64_t own = (int64_t)g->ops->own_size(g, c);
    w->lends = true;
    c->input = w->tensors[0]->a.data;
    if (!own) return RLE_OK;
    RLE_TRY(rle_tensor_new(rle_device_cpu(), RLE_U8, 1, &own, &w->own));
    c->own = w->own->a.data;
    return RLE_OK;
}

static rle_status load(const rle_comm_group *g, rle_comm_work *w, rle_collective *c)
{
    bool gathers = c->kind == RLE_COMM_ALL_GATHER;
    int64_t all;
    if (__builtin_mul_overflow(c->size, (size_t)(gathers ? w->ranks : 1), &all))
        return rle_oom(c->size, "collective");
    c->data = &none;
    if (!all) return RLE_OK;
    RLE_TRY(rle_tensor_new(rle_device_cpu(), RLE_U8, 1, &all, &w->block));
    c->data = w->block->a.data;
    if (c->kind == RLE_COMM_ALL_REDUCE && w->ranks > 1 && all >= LARGE && w->count == 1 &&
        rle_tensor_may_move(w->tensors[0]))
        return lend(g, w, c);
    uint8_t *to = c->data + (gathers ? (size_t)w->rank * c->size : 0);
    if (g->ops->apart(g, c)) {
        RLE_TRY(rle_tensor_new(rle_device_cpu(), RLE_U8, 1, &all, &w->input));
        c->input = to = w->input->a.data;
    }
    if (c->kind == RLE_COMM_BROADCAST && c->root != w->rank) return RLE_OK;
    for (int i = 0; i < w->count; i++) {
        size_t size = bytes_of(w->tensors[i]);
        if (size) RLE_TRY(rle_tensor_to_host(w->tensors[i], to, size));
        to += size;
    }
    return RLE_OK;
}

/* All of one rank after the other: [ranks, ...]. */
static rle_status gather(const rle_comm_work *w, rle_tensor **out)
{
    const rle_tensor *t = w->tensors[0];
    int64_t shape[RLE_MAX_DIMS];
    if (t->a.ndim == RLE_MAX_DIMS)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "allgather: a tensor of %d dimensions has no room "
                        "for the one of the ranks",
                        RLE_MAX_DIMS);
    shape[0] = w->ranks;
    memcpy(shape + 1, t->a.shape, (size_t)t->a.ndim * sizeof *shape);
    return rle_tensor_from_host(rle_tensor_device(t), t->a.dtype, t->a.ndim + 1, shape,
                                w->block ? w->block->a.data : &none, out);
}

static rle_status store(rle_comm_work *w)
{
    if (w->lends && rle_tensor_may_move(w->tensors[0])) {
        w->moved = true;
        rle_tensor_exchange(w->tensors[0], w->block);
        return RLE_OK;
    }
    const uint8_t *from = w->block ? w->block->a.data : &none;
    for (int i = 0; i < w->count; i++) {
        size_t size = bytes_of(w->tensors[i]);
        if (size)
            RLE_TRY(rle_tensor_write_host(w->tensors[i], w->tensors[i]->a.dtype, from));
        from += size;
    }
    return RLE_OK;
}

/* ---- the two halves ---- */

rle_status rle_comm_begin(rle_comm_group *g, const rle_comm_call *call,
                          rle_comm_work **out)
{
    sweep(g->comm);
    RLE_TRY(check_call(g, call));
    rle_collective c = {.kind = call->kind,
                        .op = call->op,
                        .root = call->root,
                        .timeout = call->timeout,
                        .site = call->site};
    if (call->count) c.dtype = call->tensors[0]->a.dtype;
    for (int i = 0; i < call->count; i++) {
        size_t size = bytes_of(call->tensors[i]);
        if (__builtin_add_overflow(c.size, size, &c.size))
            return rle_oom(size, "collective");
    }
    set_title(&c, g, call);
    set_spec(&c, call);
    rle_comm_work *w = NULL;
    RLE_TRY(new_work(g, call, &w));
    rle_status s = load(g, w, &c);
    if (s == RLE_OK) s = g->ops->begin(g, &c, &w->task);
    if (s != RLE_OK) {
        free_work(w);
        return s;
    }
    *out = w;
    return RLE_OK;
}

rle_future *rle_comm_work_future(rle_comm_work *w)
{
    return w->ops->future(w->task);
}

rle_status rle_comm_finish(rle_comm_work *w, rle_tensor **gathered)
{
    if (!w->ops->over(w->task))
        return rle_fail(RLE_FAILED_PRECONDITION, "%s is not finished",
                        kind_names[w->kind]);
    rle_status s = w->ops->outcome(w->task);
    if (s != RLE_OK && w->lends && !w->ops->idle(w->task)) keep_what_is_sent(w);
    if (s != RLE_OK) return s;
    if (w->kind == RLE_COMM_ALL_GATHER) return gather(w, gathered);
    return w->keep ? RLE_OK : store(w);
}
