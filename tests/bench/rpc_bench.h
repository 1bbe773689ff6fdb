/* rpc_bench.h - what the benchmarks of remote calls share: time, places on cores, workers. */
#ifndef RPC_BENCH_H
#define RPC_BENCH_H

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "rpc/rpc.h"

typedef struct result {
    double rate;     /* round trips a second */
    double cpu;      /* seconds of processor time for all of them */
} result;

static inline double of(const struct rusage *u)
{
    return (double)(u->ru_utime.tv_sec + u->ru_stime.tv_sec) +
           (double)(u->ru_utime.tv_usec + u->ru_stime.tv_usec) * 1e-6;
}

static inline double cpu_seconds(int who)
{
    struct rusage u;
    getrusage(who, &u);
    return of(&u);
}

static inline double seconds(void)
{
    return (double)rle_now() / 1e9;
}

static inline void keep(result *best, result r)
{
    if (r.rate > best->rate) best->rate = r.rate;
    if (best->cpu == 0 || r.cpu < best->cpu) best->cpu = r.cpu;
}

static int cores; /* 1: both on the last one; 2: the server on the first, too; 0: anywhere */

static inline void use_core(bool server)
{
    cpu_set_t set;
    int last = (int)sysconf(_SC_NPROCESSORS_ONLN) - 1;
    if (!cores) return;
    CPU_ZERO(&set);
    CPU_SET(server && cores == 2 ? 0 : last, &set);
    sched_setaffinity(0, sizeof set, &set);
}

/* ---- workers ---- */

static rle_token token;
static char address[128], bench_folder[64];

static inline bool bench_begin(void)
{
    snprintf(bench_folder, sizeof bench_folder, "/tmp/rlengine-bench-XXXXXX");
    if (!mkdtemp(bench_folder)) return false;
    snprintf(address, sizeof address, "unix:%s/s", bench_folder);
    rle_log_set_level(RLE_LOG_ERROR); /* a killed client is no news here */
    return rle_token_from_bytes("0123456789abcdef0123456789abcdef", 32, "bench", &token) == RLE_OK;
}

static inline void bench_end(void)
{
    unlink(address + 5);
    rmdir(bench_folder);
}

static inline rle_rpc *new_worker(const char *name)
{
    rle_rpc_options o = {.name = name, .token = &token};
    rle_rpc *rpc;
    if (rle_rpc_new(&o, &rpc) != RLE_OK) {
        fprintf(stderr, "%s\n", rle_message());
        exit(1);
    }
    return rpc;
}

static inline rle_peer *join(rle_rpc *rpc)
{
    rle_peer *peer;
    if (rle_rpc_connect(rpc, address, 5 * RLE_SECONDS, &peer) != RLE_OK) {
        fprintf(stderr, "%s\n", rle_message());
        exit(1);
    }
    return peer;
}

/* Answer the calls that are there: with the tensor they brought, or with nothing. `e` is the
 * caller's, to be used again. Returns how many. */
static inline int answer_calls(rle_rpc *rpc, rle_encoder *e)
{
    float row[4] = {0};
    rle_array a = {.data = row, .dtype = RLE_F32, .ndim = 1, .shape = {4}, .stride = {1}};
    rle_incoming_info info;
    rle_decoder d;
    rle_incoming *in;
    int answered = 0;
    while ((in = rle_rpc_next_call(rpc, &info, &d)) != NULL) {
        rle_value v;
        int n = info.head.args;
        bool small = n && rle_decode(&d, &v) == RLE_OK && v.u.tensor.size == sizeof row;
        if (small) memcpy(row, v.u.tensor.data, sizeof row);
        rle_incoming_read(rpc, in);
        rle_encoder_reset(e);
        rle_encode_result_head(e, small);
        if (small) rle_encode_tensor(e, &a, NULL);
        rle_incoming_reply(rpc, in, e);
        answered++;
    }
    return answered;
}

/* `calls` calls one after another, each with the array, or without argument where it is NULL. */
static inline void make_calls(rle_rpc *rpc, rle_peer *peer, const rle_array *a, int calls)
{
    rle_encoder e;
    rle_encoder_init(&e);
    rle_call_head head = {.method_len = 4, .method = "ping", .args = a != NULL};
    rle_call_spec spec = {.peer = peer, .method = "ping"};
    for (int i = 0; i < calls; i++) {
        rle_encoder_reset(&e);
        rle_encode_call_head(&e, &head);
        if (a) rle_encode_tensor(&e, a, NULL);
        rle_future *f;
        if (rle_rpc_call(rpc, &spec, &e, &f) != RLE_OK) exit(1);
        while (rle_future_status(rpc, f) == RLE_FUTURE_PENDING) rle_rpc_turn(rpc, true);
        if (rle_future_status(rpc, f) != RLE_FUTURE_DONE) exit(1);
        rle_future_read(rpc, f);
        rle_future_release(rpc, f);
    }
    rle_encoder_fini(&e);
}

#endif
