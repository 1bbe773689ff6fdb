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

#include "rpc_bench.h"

enum { ROUNDS = 9, CALLS = 20000, CALL_BYTES = 64 + 17 };

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

static void serve(int ready)
{
    rle_rpc *rpc = new_worker("server");
    if (rle_rpc_listen(rpc, address, NULL) != RLE_OK) exit(1);
    if (write(ready, "", 1) != 1) exit(1);
    rle_encoder e;
    rle_encoder_init(&e);
    for (;;) {
        rle_rpc_turn(rpc, true);
        answer_calls(rpc, &e);
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
    rle_peer *peer = join(rpc);
    float row[4] = {1, 2, 3, 4};
    rle_array a = {.data = row, .dtype = RLE_F32, .ndim = 1, .shape = {4}, .stride = {1}};
    double children = cpu_seconds(RUSAGE_CHILDREN), own = cpu_seconds(RUSAGE_SELF);
    double start = seconds();
    make_calls(rpc, peer, tensor ? &a : NULL, CALLS);
    double took = seconds() - start;
    own = cpu_seconds(RUSAGE_SELF) - own;
    rle_rpc_free(rpc);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return (result){CALLS / took, own + cpu_seconds(RUSAGE_CHILDREN) - children};
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
    if (!bench_begin()) return 1;
    run(2);
    run(1);
    bench_end();
    return 0;
}
