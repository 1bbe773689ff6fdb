/* comm.h - collectives: what the workers of a group compute together. Every rank of a
 * group calls the same collectives in the same order, and each gets its part of the
 * result.
 *
 * The tensors are copied into one block of host memory, the bytes are moved and added up
 * there, and only a result that is there as a whole is copied back: a collective that
 * fails leaves its tensors as they were. A single large tensor of the CPU is sent from
 * where it is, and in the end gets the block with the result in place of its memory. How
 * the bytes move is a table of operations (rle_comm_ops), of which comm_rpc.c fills one,
 * over the remote calls that workers have anyway.
 *
 * Sums are formed element by element in the order of the ranks: for rank 0's value, plus
 * rank 1's, and so on. So every rank has the same bits, they are those of a plain loop,
 * and they do not depend on who comes first, on how many elements there are or on where
 * in the tensor one stands.
 *
 * Threads: the owner of the rle_rpc calls these functions. Bytes also move while it
 * computes, on the guard (rpc/loop.h). */
#ifndef RLE_COMM_COMM_H
#define RLE_COMM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rpc/rpc.h"
#include "tensor/tensor.h"

typedef struct rle_comm rle_comm;             /* of an rle_rpc */
typedef struct rle_comm_group rle_comm_group; /* workers with ranks from 0 */
typedef struct rle_comm_work rle_comm_work;   /* a collective that was begun */
typedef struct rle_comm_task rle_comm_task;   /* the bytes of one */

typedef enum {
    RLE_COMM_ALL_REDUCE,
    RLE_COMM_REDUCE,     /* the root has the result, the others keep what they have */
    RLE_COMM_BROADCAST,  /* what the root has */
    RLE_COMM_ALL_GATHER, /* what each has, side by side */
    RLE_COMM_BARRIER
} rle_comm_kind;

typedef enum {
    RLE_COMM_SUM,
    RLE_COMM_MEAN, /* the sum, divided by the number of ranks; not of integers */
    RLE_COMM_MIN,
    RLE_COMM_MAX,
    RLE_COMM_PROD
} rle_comm_op;
const char *rle_comm_op_name(rle_comm_op op);
/* INVALID_ARGUMENT names what there is. */
rle_status rle_comm_op_parse(const char *name, rle_comm_op *out);

enum { RLE_COMM_TITLE = 160, RLE_COMM_SPEC = 256, RLE_COMM_MAX_RANKS = 1024 };

/* ---- moving bytes ---- */

/* One rank's view of a collective. */
typedef struct rle_collective {
    rle_comm_kind kind;
    rle_comm_op op;
    rle_dtype dtype; /* of the elements that are combined */
    int root;        /* of REDUCE and BROADCAST */
    size_t size;     /* bytes of one rank */
    /* They (but where they lie apart), and then the result. ALL_GATHER: those of all
     * ranks, ours at our place. Has to stay until the task is idle. */
    uint8_t *data;
    /* What this rank contributes, where it is not in `data`; stays as long. Then `own`
     * has room for the parts that are this rank's (rle_comm_own_size), from which the
     * others get them: nothing is sent from `data`, it is the caller's as soon as all is
     * over. */
    const uint8_t *input;
    uint8_t *own;
    char title[RLE_COMM_TITLE]; /* allreduce "grads": for messages */
    char spec[RLE_COMM_SPEC]; /* what has to be the same at every rank, besides the title
                               */
    int64_t timeout;          /* nanoseconds, > 0 */
    uint32_t site;            /* script line */
} rle_collective;

typedef struct rle_comm_ops {
    const char *name;
    /* Must what is contributed lie apart from `data`, as `input`? It may be sent when the
     * result is being written already. */
    bool (*apart)(const rle_comm_group *g, const rle_collective *c);
    /* Bytes of `own` of a sum at this rank. */
    size_t (*own_size)(const rle_comm_group *g, const rle_collective *c);
    /* Begin to move them. RESOURCE_EXHAUSTED; all other failures are the task's. */
    rle_status (*begin)(rle_comm_group *g, const rle_collective *c, rle_comm_task **out);
    /* Done or failed when the task is over. Borrowed. */
    rle_future *(*future)(rle_comm_task *t);
    bool (*over)(rle_comm_task *t);
    /* Of one that is over: RLE_OK, or what failed. */
    rle_status (*outcome)(rle_comm_task *t);
    /* Nobody at this rank wants its result: its data is not written any more. */
    void (*let_go)(rle_comm_task *t);
    /* It is over, and nothing reads its data any more. */
    bool (*idle)(rle_comm_task *t);
    /* Of one that is idle. */
    void (*free_task)(rle_comm_task *t);
    /* Tasks that are not over fail. */
    void (*free_group)(rle_comm_group *g);
} rle_comm_ops;

/* ---- groups ---- */

/* One for each rle_rpc, freed with it. */
rle_status rle_comm_open(rle_rpc *rpc, rle_comm **out);

/* The workers of these names, each other one reachable or about to join; our own name is
 * among them. The same names in the same order and the same `tag` make the group at every
 * rank. Of a tag a worker has one group at a time, or with '#' in front one of these
 * workers. INVALID_ARGUMENT, also when others have made it otherwise, who hear of it;
 * ALREADY_EXISTS.
 */
rle_status rle_comm_group_new(rle_comm *comm, const char *const *names, int count,
                              const char *tag, rle_comm_group **out);
void rle_comm_group_free(rle_comm_group *g);
int rle_comm_group_rank(const rle_comm_group *g);
int rle_comm_group_size(const rle_comm_group *g);

/* ---- collectives of tensors ---- */

typedef struct rle_comm_call {
    rle_comm_kind kind;
    rle_comm_op op;
    int root;
    const char *name;           /* what it is called in messages; NULL: its number */
    int64_t timeout;            /* nanoseconds, > 0 */
    rle_tensor *const *tensors; /* of one dtype; retained */
    int count;
    bool grad_enabled; /* tensors that record are refused */
    uint32_t site;
} rle_comm_call;

/* INVALID_ARGUMENT: tensors it cannot take; RESOURCE_EXHAUSTED: memory, or too many that
 * are not over; the device's failures. Nothing is begun then. */
rle_status rle_comm_begin(rle_comm_group *g, const rle_comm_call *call,
                          rle_comm_work **out);
rle_future *rle_comm_work_future(rle_comm_work *w);
/* Of one that is over: the result into the tensors; for ALL_GATHER into a new one on the
 * tensor's device, of shape [ranks, ...], in *gathered. Or what failed. */
rle_status rle_comm_finish(rle_comm_work *w, rle_tensor **gathered);
/* Let go of it. One that is not over goes on for the others, and its result is dropped.
 * May be called by finalizers. */
void rle_comm_work_free(rle_comm_work *w);
/* How many are not over, or not freed yet. */
size_t rle_comm_works(rle_comm *comm);

#endif
