/* bench_rpc.c - round trips a second between two processes over a Unix socket, as ratios
 * against the least there is: libevent with own buffers echoing as many bytes.
 *
 *   build/bench/bench_rpc            all of it, best of nine each, interleaved
 *   build/bench/bench_rpc echo 2     only the echo on two cores: "echo RATE MICROSECONDS"
 *
 * Once with the two processes on different cores, where waking the other one is most of the
 * time, and once on the same core, where it is processor time that counts. Left to the
 * scheduler the figures would say where it put them.
 *
 * Two figures each: round trips a second by the clock, and microseconds of processor time of
 * both processes together, which other programs on the machine disturb less.
 *
 * "empty" is a call without arguments or results; "tensor" sends and gets f32[4]. Both ends
 * are this program in C; what Lua adds is measured by rpc_lua.lua. */
#include <event2/event.h>
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

enum { ROUNDS = 9, CALLS = 20000, CALL_BYTES = 64 + 17 };

typedef struct result {
    double rate;     /* round trips a second */
    double cpu;      /* seconds of processor time for all of them */
} result;

static double of(const struct rusage *u)
{
    return (double)(u->ru_utime.tv_sec + u->ru_stime.tv_sec) +
           (double)(u->ru_utime.tv_usec + u->ru_stime.tv_usec) * 1e-6;
}

static double cpu_seconds(int who)
{
    struct rusage u;
    getrusage(who, &u);
    return of(&u);
}

static int cores; /* 1: both on the last one; 2: the server on the first, too */

static void use_core(bool server)
{
    cpu_set_t set;
    int last = (int)sysconf(_SC_NPROCESSORS_ONLN) - 1;
    CPU_ZERO(&set);
    CPU_SET(server && cores == 2 ? 0 : last, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static double seconds(void)
{
    return (double)rle_now() / 1e9;
}

/* ---- the bare echo ---- */

typedef struct echo {
    struct event_base *base;
    int fd;
    int left;
    char buffer[4096];
} echo;

static void echo_server(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    echo *e = arg;
    ssize_t n = recv(fd, e->buffer, sizeof e->buffer, 0);
    if (n <= 0) _exit(0); /* what the parent has printed is in our buffer, too */
    if (send(fd, e->buffer, (size_t)n, MSG_NOSIGNAL) != n) _exit(1);
}

static void echo_client(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    echo *e = arg;
    ssize_t n = recv(fd, e->buffer, sizeof e->buffer, 0);
    if (n != CALL_BYTES) exit(1);
    e->left--;
}

static result bare_echo(void)
{
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds)) exit(1);
    static echo e;
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        use_core(true);
        close(fds[0]);
        e.base = event_base_new();
        event_add(event_new(e.base, fds[1], EV_READ | EV_PERSIST, echo_server, &e), NULL);
        event_base_dispatch(e.base);
        _exit(0);
    }
    close(fds[1]);
    e.base = event_base_new();
    struct event *ev = event_new(e.base, fds[0], EV_READ | EV_PERSIST, echo_client, &e);
    event_add(ev, NULL);
    double children = cpu_seconds(RUSAGE_CHILDREN), own = cpu_seconds(RUSAGE_SELF);
    double start = seconds();
    for (int i = 0; i < CALLS; i++) {
        e.left = 1;
        if (send(fds[0], e.buffer, CALL_BYTES, MSG_NOSIGNAL) != CALL_BYTES) exit(1);
        while (e.left) event_base_loop(e.base, EVLOOP_ONCE);
    }
    double took = seconds() - start;
    own = cpu_seconds(RUSAGE_SELF) - own;
    event_free(ev);
    event_base_free(e.base);
    close(fds[0]);
    waitpid(pid, NULL, 0);
    return (result){CALLS / took, own + cpu_seconds(RUSAGE_CHILDREN) - children};
}

/* ---- remote calls ---- */

static rle_token token;
static char address[128];

static rle_rpc *new_worker(const char *name)
{
    rle_rpc_options o = {.name = name, .token = &token};
    rle_rpc *rpc;
    if (rle_rpc_new(&o, &rpc) != RLE_OK) {
        fprintf(stderr, "%s\n", rle_message());
        exit(1);
    }
    return rpc;
}

static void serve(int ready)
{
    rle_rpc *rpc = new_worker("server");
    if (rle_rpc_listen(rpc, address, NULL) != RLE_OK) exit(1);
    if (write(ready, "", 1) != 1) exit(1);
    rle_encoder e;
    rle_encoder_init(&e);
    float row[4];
    rle_array a = {.data = row, .dtype = RLE_F32, .ndim = 1, .shape = {4}, .stride = {1}};
    for (;;) {
        rle_rpc_turn(rpc, true);
        rle_incoming_info info;
        rle_decoder d;
        rle_incoming *in;
        while ((in = rle_rpc_next_call(rpc, &info, &d)) != NULL) {
            rle_value v;
            int n = info.head.args;
            if (n && rle_decode(&d, &v) == RLE_OK) memcpy(row, v.u.tensor.data, sizeof row);
            rle_incoming_read(rpc, in);
            rle_encoder_reset(&e);
            rle_encode_result_head(&e, (uint16_t)n);
            if (n) rle_encode_tensor(&e, &a, NULL);
            rle_incoming_reply(rpc, in, &e);
        }
    }
}

static result remote_calls(bool tensor)
{
    int pipe_fds[2];
    if (pipe(pipe_fds)) exit(1);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        use_core(true);
        serve(pipe_fds[1]);
    }
    char byte;
    if (read(pipe_fds[0], &byte, 1) != 1) exit(1);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    rle_rpc *rpc = new_worker("client");
    rle_peer *peer;
    if (rle_rpc_connect(rpc, address, 5 * RLE_SECONDS, &peer) != RLE_OK) {
        fprintf(stderr, "%s\n", rle_message());
        exit(1);
    }
    rle_encoder e;
    rle_encoder_init(&e);
    rle_call_head head = {.method_len = 4, .method = "ping", .args = tensor};
    rle_call_spec spec = {.peer = peer, .method = "ping"};
    float row[4] = {1, 2, 3, 4};
    rle_array a = {.data = row, .dtype = RLE_F32, .ndim = 1, .shape = {4}, .stride = {1}};
    double children = cpu_seconds(RUSAGE_CHILDREN), own = cpu_seconds(RUSAGE_SELF);
    double start = seconds();
    for (int i = 0; i < CALLS; i++) {
        rle_encoder_reset(&e);
        rle_encode_call_head(&e, &head);
        if (tensor) rle_encode_tensor(&e, &a, NULL);
        rle_future *f;
        if (rle_rpc_call(rpc, &spec, &e, &f) != RLE_OK) exit(1);
        while (rle_future_status(rpc, f) == RLE_FUTURE_PENDING) rle_rpc_turn(rpc, true);
        if (rle_future_status(rpc, f) != RLE_FUTURE_DONE) exit(1);
        rle_future_read(rpc, f);
        rle_future_release(rpc, f);
    }
    double took = seconds() - start;
    own = cpu_seconds(RUSAGE_SELF) - own;
    rle_encoder_fini(&e);
    rle_rpc_free(rpc);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return (result){CALLS / took, own + cpu_seconds(RUSAGE_CHILDREN) - children};
}

static void keep(result *best, result r)
{
    if (r.rate > best->rate) best->rate = r.rate;
    if (best->cpu == 0 || r.cpu < best->cpu) best->cpu = r.cpu;
}

static void show(const char *what, result r, result echo_result)
{
    printf("%-12s %8.0f round trips/s, %5.2f us of cpu; "
           "%3.0f %% and %3.0f %% of the echo's speed\n",
           what, r.rate, r.cpu * 1e6 / CALLS, 100 * r.rate / echo_result.rate,
           100 * echo_result.cpu / r.cpu);
}

static void run(int on_cores)
{
    cores = on_cores;
    use_core(false);
    result echo_best = {0, 0}, empty = {0, 0}, tensor = {0, 0};
    for (int i = 0; i < ROUNDS; i++) {
        keep(&echo_best, bare_echo());
        keep(&empty, remote_calls(false));
        keep(&tensor, remote_calls(true));
    }
    printf("%s\n", cores == 1 ? "one core" : "two cores");
    show("bare echo", echo_best, echo_best);
    show("empty call", empty, echo_best);
    show("f32[4] call", tensor, echo_best);
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "echo") == 0) {
        cores = atoi(argv[2]);
        use_core(false);
        result r = bare_echo();
        printf("echo %.0f %.3f\n", r.rate, r.cpu * 1e6 / CALLS);
        return 0;
    }
    char folder[] = "/tmp/rlengine-bench-XXXXXX";
    if (!mkdtemp(folder)) return 1;
    snprintf(address, sizeof address, "unix:%s/s", folder);
    rle_token_from_bytes("0123456789abcdef0123456789abcdef", 32, "bench", &token);
    rle_log_set_level(RLE_LOG_ERROR); /* a killed client is no news here */
    run(2);
    run(1);
    unlink(address + 5);
    rmdir(folder);
    return 0;
}
