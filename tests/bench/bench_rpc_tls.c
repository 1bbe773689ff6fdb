/* bench_rpc_tls.c - what TLS costs: calls without arguments, tensors of 1 MiB and joining,
 * between two processes over TCP at 127.0.0.1, plain and with a key from the token.
 *
 *   build/bench/bench_rpc_tls [rounds]
 *
 * The best of several rounds counts, which alternate. Plain TCP checks every body with
 * CRC-32C; TLS does not, because every record is authenticated. */
#include "rpc_bench.h"

enum { CALLS = 5000, BIG = 1 << 20, BIG_CALLS = 400, JOINS = 200 };

static const rle_tls_options psk = {.psk = true};
static uint8_t big[BIG];
static char bound[RLE_ADDRESS_MAX];

static rle_rpc *tcp_worker(const char *name, bool tls)
{
    rle_rpc_options o = {.name = name, .token = &token, .tls = tls ? &psk : NULL};
    rle_rpc *rpc;
    if (rle_rpc_new(&o, &rpc) == RLE_OK) return rpc;
    fprintf(stderr, "%s\n", rle_message());
    exit(1);
}

static rle_peer *tcp_join(rle_rpc *rpc)
{
    rle_peer *peer;
    if (rle_rpc_connect(rpc, bound, 5 * RLE_SECONDS, &peer) == RLE_OK) return peer;
    fprintf(stderr, "%s\n", rle_message());
    exit(1);
}

/* A process that answers until it is killed. */
static pid_t start_server(bool tls)
{
    int ready[2];
    if (pipe(ready)) exit(1);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        use_core(true);
        rle_rpc *rpc = tcp_worker("server", tls);
        rle_encoder e;
        rle_encoder_init(&e);
        if (rle_rpc_listen(rpc, "tcp://127.0.0.1:0", bound) != RLE_OK ||
            write(ready[1], bound, sizeof bound) != sizeof bound)
            _exit(1);
        for (;;) {
            rle_rpc_turn(rpc, true);
            answer_calls(rpc, &e);
        }
    }
    if (read(ready[0], bound, sizeof bound) != sizeof bound) exit(1);
    close(ready[0]);
    close(ready[1]);
    return pid;
}

static result finish(pid_t pid, int count, double start, double own, double children)
{
    double took = seconds() - start;
    own = cpu_seconds(RUSAGE_SELF) - own;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return (result){count / took, own + cpu_seconds(RUSAGE_CHILDREN) - children};
}

static result calls(bool tls, bool large)
{
    double children = cpu_seconds(RUSAGE_CHILDREN);
    pid_t pid = start_server(tls);
    rle_rpc *rpc = tcp_worker("client", tls);
    rle_peer *peer = tcp_join(rpc);
    rle_array a = {.data = big, .dtype = RLE_U8, .ndim = 1, .shape = {BIG}, .stride = {1}};
    int count = large ? BIG_CALLS : CALLS;
    make_calls(rpc, peer, large ? &a : NULL, count / 10); /* the server's first page faults */
    double own = cpu_seconds(RUSAGE_SELF), start = seconds();
    make_calls(rpc, peer, large ? &a : NULL, count);
    result r = finish(pid, count, start, own, children);
    rle_rpc_free(rpc);
    return r;
}

static result joins(bool tls)
{
    double children = cpu_seconds(RUSAGE_CHILDREN);
    pid_t pid = start_server(tls);
    double own = cpu_seconds(RUSAGE_SELF), start = seconds();
    for (int i = 0; i < JOINS; i++) {
        char name[16];
        snprintf(name, sizeof name, "client_%d", i);
        rle_rpc *rpc = tcp_worker(name, tls);
        tcp_join(rpc);
        rle_rpc_free(rpc);
    }
    return finish(pid, JOINS, start, own, children);
}

static void show(const char *what, int count, const result r[2])
{
    for (int tls = 0; tls < 2; tls++) {
        printf("%-10s %-6s %8.0f /s, %7.2f us of cpu", tls ? "" : what, tls ? "tls" : "plain",
               r[tls].rate, r[tls].cpu * 1e6 / count);
        if (tls)
            printf("; %3.0f %% of plain by the clock, %3.0f %% by cpu",
                   100 * r[1].rate / r[0].rate, 100 * r[0].cpu / r[1].cpu);
        putchar('\n');
    }
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 5;
    if (!bench_begin()) return 1;
    cores = 2;
    use_core(false);
    result empty[2] = {{0}}, large[2] = {{0}}, joining[2] = {{0}};
    for (int i = 0; i < rounds; i++) {
        for (int tls = 0; tls < 2; tls++) {
            keep(&empty[tls], calls(tls, false));
            keep(&large[tls], calls(tls, true));
            keep(&joining[tls], joins(tls));
        }
    }
    show("empty call", CALLS, empty);
    show("1 MiB", BIG_CALLS, large);
    show("joining", JOINS, joining);
    bench_end();
    return 0;
}
