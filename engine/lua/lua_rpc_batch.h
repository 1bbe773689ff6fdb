/* lua_rpc_batch.h - batched functions: calls of many workers, answered by one call of a
 * Lua function with their arguments stacked (rpc.batched).
 *
 *   lua_rpc_batch.c       which calls are batched, and whose rows their arguments become
 *   lua_rpc_batch_args.c  are the arguments what the function takes?
 *   lua_rpc_rows.c        buffers of rows, and their copies where the function runs
 *   lua_rpc_flush.c       a batch through Lua, and its results back to the callers
 *
 * For each batched function, and each object with a batched method, that was called there
 * is an rle_lua_batch. Its calls are collected without Lua: the bytes of their tensors go
 * from the message into the rows of a buffer in host memory, those of long messages are
 * received there. A flush takes the buffer and the calls along; it is a coroutine like a
 * handler's, and while it waits another buffer is filled. A buffer is used again unless
 * somebody still holds its memory: a script (a view of it), a graph, or a message that is
 * still being received into rows of it.
 *
 * Only the thread of the Lua state comes here; the guard may write to rows that were
 * given to a message (rle_lua_batch_place), which belong to no flush until that message
 * is whole. */
#ifndef RLE_LUA_RPC_BATCH_H
#define RLE_LUA_RPC_BATCH_H

#include "lua/lua_rpc.h"

#include "device/stream.h"
#include "rpc/batch.h"
#include "tensor/tensor.h"

enum { RLE_BATCH_INPUTS = 16, RLE_BATCH_RESULTS = 16, RLE_BATCH_SPARE = 2 };

/* An argument of a batched function. */
typedef struct rle_batch_input {
    char name[RLE_NAME_MAX + 1];
    bool any;      /* no tensor: a value for each call */
    rle_array row; /* dtype, shape and strides of one row */
    size_t row_bytes;
    char wants[96]; /* "f32[4]" */
} rle_batch_input;

typedef struct rle_batch_buffer {
    struct rle_batch_buffer *next;
    rle_tensor *host[RLE_BATCH_INPUTS]; /* [capacity, row...]; NULL for `any` */
    rle_tensor *device[RLE_BATCH_INPUTS]; /* their copies where the function runs; NULL on
                                             the CPU and while there is none */
    rle_event *copied;             /* the device has read the rows; NULL on the CPU */
    rle_writer values;             /* of `any`, as they came */
    size_t capacity, end;          /* rows; those given away so far */
    uint8_t *results;              /* results of a device, in host memory */
    size_t results_size;
} rle_batch_buffer;

typedef struct rle_lua_batch {
    struct rle_lua_batch *next, *next_same; /* all; those of one key */
    uint64_t key, object;
    char method[RLE_NAME_MAX + 1];
    char who[RLE_NAME_MAX + 1]; /* "policy wants f32[4]" */
    rle_batch *core;
    int spec_ref; /* the table of rlengine/rpc/batch.lua */
    rle_device *device;
    int inputs;
    rle_batch_input input[RLE_BATCH_INPUTS];
    size_t size, capacity; /* rows of a batch; of a buffer */
    bool when_idle;
    bool retired; /* declared anew, or its object is gone: no further calls */
    rle_batch_buffer *filling, *spare;
    size_t spares, flights; /* flights: flushes that are not over */
    rle_batch_calls kept; /* the block of an earlier flush */
} rle_lua_batch;

/* One flush; in rle_lua_handler.flush. */
typedef struct rle_lua_flush {
    rle_lua_batch *batch;
    rle_batch_buffer *buffer;
    rle_batch_calls calls;
    int info_ref; /* the table the function gets last, which holds its inputs */
} rle_lua_flush;

/* The arguments of one call, still in its message. */
typedef struct rle_batch_arguments {
    rle_value value[RLE_BATCH_INPUTS]; /* of those with rows */
    rle_slice any[RLE_BATCH_INPUTS];
    size_t rows;
    bool single;
} rle_batch_arguments;

/* Nothing is taken from the message. INVALID_ARGUMENT says whose argument is not what. */
rle_status rle_batch_read(const rle_lua_batch *b, const rle_incoming_info *info,
                          rle_decoder *d, rle_batch_arguments *a);
/* How many rows a tensor brings; *single: without a dimension for them. */
rle_status rle_batch_count_rows(const rle_lua_batch *b, const rle_batch_input *input,
                                const rle_peer *caller, const rle_value *v, size_t *rows,
                                bool *single);
/* A number that stands for a row without dimensions. */
void rle_batch_store_number(const rle_value *v, rle_dtype dtype, void *to);

/* A call that was started: true when it went into a batch, or was answered. */
bool rle_lua_batch_call(lua_State *L, rle_incoming *in, const rle_incoming_info *info,
                        const rle_decoder *decoder);
/* Rows for the tensors of a long call, if it will go into a batch. */
bool rle_lua_batch_place(const rle_placement *p, void **data, void **handles);
/* Start a flush of this batch. */
void rle_lua_batch_flush(lua_State *L, rle_lua_batch *b, rle_flush_reason reason);
/* Its function is over, or its coroutine gone. */
void rle_lua_flush_done(lua_State *L, rle_lua_flush *f);
/* Answer all of it with an error. */
void rle_lua_flush_fail(rle_lua_flush *f, const rle_wire_error *e);
/* Its function waits for another worker, or no longer. */
void rle_lua_flush_waits(const rle_lua_flush *f, bool waits);
/* There is nothing else to do: a last look at the sockets, then a batch may be due for
 * that. True when s->work says what to do. */
bool rle_lua_batch_idle(rle_lua_rpc *s);
void rle_lua_batch_drop_object(lua_State *L, uint64_t object);
void rle_lua_batch_drop_all(lua_State *L); /* this worker stops */
/* Into the table on top. */
void rle_lua_batch_counters(lua_State *L, const rle_rpc_counters *c);

rle_batch_buffer *rle_batch_buffer_new(rle_lua_batch *b, size_t capacity); /* or NULL */
void rle_batch_buffer_free(rle_batch_buffer *buffer);
/* Its batch is over: it is kept for another one, or freed. */
void rle_batch_buffer_done(rle_lua_batch *b, rle_batch_buffer *buffer);
/* Does anybody but the buffer hold its rows? */
bool rle_batch_buffer_held(const rle_lua_batch *b, const rle_batch_buffer *buffer);
/* The first `rows` rows of input i as a new view, where the function runs: they are sent
 * there, and stay as they are until the device has read them. */
rle_status rle_batch_buffer_rows(rle_lua_batch *b, rle_batch_buffer *buffer, int i,
                                 size_t rows, rle_tensor **out);
/* Frees a retired batch when nothing of it is left. */
void rle_lua_batch_settle(lua_State *L, rle_lua_batch *b);

extern const luaL_Reg rle_lua_rpc_batch_functions[], rle_lua_rpc_flush_functions[];

#endif
