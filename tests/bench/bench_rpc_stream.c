/* bench_rpc_stream.c - weights that pass, and the calls of others meanwhile.
 *
 *   build/bench/bench_rpc_stream [tcp] [MiB of a version] [followers...]
 *
 * One worker publishes versions without end; processes follow them, and another one answers
 * empty calls. Told are: what the versions make a second, all followers together; from call to
 * answer by the clock; and, which does not depend on what else the machine does, the processor
 * time of the publisher during a call and during one turn of its loop, and the bytes that it wrote
 * to others during a call. First nothing else passes, then all followers read, then one of them is
 * stopped. */
#include "rpc_bench.h"

#include <time.h>

enum { CALLS = 3000 };
static bool tcp;
static char bound[RLE_ADDRESS_MAX];

static double thread_cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static rle_peer *join_bound(rle_rpc *rpc)
{
    rle_peer *peer;
    if (rle_rpc_connect(rpc, bound, 5 * RLE_SECONDS, &peer) == RLE_OK) return peer;
    fprintf(stderr, "%s\n", rle_message());
    exit(1);
}

/* A process that answers calls and, where it follows, takes every version. */
static pid_t start(const char *name, bool follows)
{
    pid_t pid = fork();
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    rle_rpc *rpc = new_worker(name);
    rle_peer *peer = join_bound(rpc);
    rle_follower *fo;
    rle_msg m;
    rle_encoder e;
    rle_encoder_init(&e);
    if (follows && rle_follower_new(rpc, peer, "weights", &fo) != RLE_OK) exit(1);
    while (rle_peer_present(rpc, peer)) {
        rle_rpc_turn(rpc, true);
        answer_calls(rpc, &e);
        if (follows && rle_follower_take(fo, &m)) rle_follower_done(fo);
    }
    _exit(0);
}

static void publish(rle_publication *p, size_t size)
{
    rle_publication_info info;
    rle_publication_look(p, &info);
    rle_encoder e;
    rle_encoder_init(&e);
    rle_encode_result_head(&e, 2);
    rle_encode_integer(&e, (int64_t)info.version + 1);
    uint8_t none, *to;
    rle_array a = {.data = &none, .dtype = RLE_U8, .ndim = 1, .shape = {(int64_t)size}};
    rle_array_set_contiguous(&a);
    rle_encode_tensor(&e, &a, NULL);
    if (rle_publication_stage(p, &e, true, &to) != RLE_OK) exit(1);
    memset(to, (int)info.version, size);
    rle_publication_commit(p);
    rle_encoder_fini(&e);
}

static uint64_t written(rle_rpc *rpc, const char *but)
{
    static rle_peer_info list[256];
    size_t n = rle_rpc_peers(rpc, list, 256);
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i].name, but) != 0) sum += list[i].bytes_out;
    return sum;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double percentile(double *list, int n, double p)
{
    qsort(list, (size_t)n, sizeof *list, compare);
    int at = (int)(n * p);
    return list[at < n ? at : n - 1];
}

/* `reading`: followers that take what is published; 0: nothing is. */
static void measure(const char *what, rle_rpc *rpc, rle_publication *p, size_t size, size_t reading)
{
    static double wall[CALLS], cpu[CALLS], bytes[CALLS];
    rle_peer *other = rle_rpc_peer(rpc, "other");
    rle_call_head head = {.method_len = 4, .method = "ping"};
    rle_call_spec spec = {.peer = other, .method = "ping"};
    rle_encoder e;
    rle_encoder_init(&e);
    double longest = 0, begin = seconds();
    uint64_t at_first = written(rpc, "other");
    for (int i = -100; i < CALLS; i++) {
        rle_publication_info info;
        rle_publication_look(p, &info);
        if (reading && info.waiting >= reading) publish(p, size);
        rle_encoder_reset(&e);
        rle_encode_call_head(&e, &head);
        rle_future *f;
        uint64_t out = written(rpc, "other");
        double wall_before = seconds(), cpu_before = thread_cpu();
        if (rle_rpc_call(rpc, &spec, &e, &f) != RLE_OK) exit(1);
        while (rle_future_status(rpc, f) == RLE_FUTURE_PENDING) {
            double turn = thread_cpu();
            rle_rpc_turn(rpc, true);
            turn = thread_cpu() - turn;
            if (i >= 0 && turn > longest) longest = turn;
        }
        int at = i < 0 ? 0 : i;
        wall[at] = seconds() - wall_before;
        cpu[at] = thread_cpu() - cpu_before;
        bytes[at] = (double)(written(rpc, "other") - out);
        rle_future_read(rpc, f);
        rle_future_release(rpc, f);
    }
    double rate = (double)(written(rpc, "other") - at_first) / (seconds() - begin) / 1e6;
    printf("%-24s %8.0f  %8.3f %8.3f %8.3f  %8.3f %8.3f %8.3f  %8.3f  %8.0f %8.0f\n", what, rate,
           percentile(wall, CALLS, .5) * 1e3, percentile(wall, CALLS, .99) * 1e3,
           percentile(wall, CALLS, 1) * 1e3, percentile(cpu, CALLS, .5) * 1e3,
           percentile(cpu, CALLS, .99) * 1e3, percentile(cpu, CALLS, 1) * 1e3, longest * 1e3,
           percentile(bytes, CALLS, .99) / 1024, percentile(bytes, CALLS, 1) / 1024);
    fflush(stdout);
    rle_encoder_fini(&e);
}

/* Without calls: how fast they pass, and for how much of the publisher's time. */
static void alone(rle_rpc *rpc, rle_publication *p, size_t size, size_t followers)
{
    uint64_t before = written(rpc, "");
    double begin = seconds(), cpu = thread_cpu();
    while (seconds() - begin < 1) {
        rle_publication_info info;
        rle_publication_look(p, &info);
        if (info.waiting >= followers) publish(p, size);
        rle_rpc_turn(rpc, true);
    }
    double mb = (double)(written(rpc, "") - before) / 1e6;
    printf("%zu followers, no calls    %8.0f  and %.0f us of the publisher's cpu for each MB\n",
           followers, mb / (seconds() - begin), (thread_cpu() - cpu) * 1e6 / mb);
}

static void stream(int followers, size_t size)
{
    rle_rpc *rpc = new_worker("trainer");
    rle_publication *p;
    pid_t pids[256], other;
    if (rle_rpc_listen(rpc, tcp ? "tcp://127.0.0.1:0" : address, bound) != RLE_OK ||
        rle_publication_new(rpc, "weights", "", 0, &p) != RLE_OK)
        exit(1);
    for (int i = 0; i < followers; i++) {
        char name[32];
        snprintf(name, sizeof name, "obs_%d", i);
        pids[i] = start(name, true);
    }
    other = start("other", false);
    rle_publication_info info = {0};
    rle_peer *last = rle_rpc_peer(rpc, "other");
    while (info.waiting < (size_t)followers || !rle_peer_connected(rpc, last)) {
        rle_rpc_turn(rpc, true);
        rle_publication_look(p, &info);
    }
    char what[64];
    snprintf(what, sizeof what, "%d followers, nothing", followers);
    measure(what, rpc, p, size, 0);
    alone(rpc, p, size, (size_t)followers);
    snprintf(what, sizeof what, "%d followers read", followers);
    measure(what, rpc, p, size, (size_t)followers);
    if (followers > 1) {
        kill(pids[0], SIGSTOP);
        snprintf(what, sizeof what, "%d followers, one stopped", followers);
        measure(what, rpc, p, size, (size_t)followers - 1);
    }
    for (int i = 0; i < followers; i++) kill(pids[i], SIGKILL);
    kill(other, SIGKILL);
    for (int i = 0; i <= followers; i++) wait(NULL);
    rle_rpc_free(rpc);
}

int main(int argc, char **argv)
{
    int at = 1, followers[] = {1, 2, 8};
    if (at < argc && strcmp(argv[at], "tcp") == 0) tcp = true, at++;
    size_t size = (size_t)(at < argc ? atoi(argv[at++]) : 4) << 20;
    if (!bench_begin()) return 1;
    printf("versions of %zu MiB over %s        call, ms                  of cpu, ms          "
           "        turn,   KiB to others\n"
           "                             MB/s       p50      p99  longest       p50      p99  "
           "longest    cpu ms       p99     most\n",
           size >> 20, tcp ? "TCP" : "a unix socket");
    if (at < argc)
        for (; at < argc; at++) stream(atoi(argv[at]), size);
    else
        for (int i = 0; i < 3; i++) stream(followers[i], size);
    bench_end();
    return 0;
}
