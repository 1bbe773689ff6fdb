/* bench_rpc_scale.c - one worker that serves many: what a connection costs, how fast they
 * come, how evenly they are served.
 *
 *   build/bench/bench_rpc_scale                 1, 100, 1,000 and 10,000 connections
 *   build/bench/bench_rpc_scale 200 1000        so many
 *
 * All the others live in one process (tests/c/rpc_crowd.h), so with two processors each
 * side has one. Memory is what the server grew by, divided by the connections: by the
 * engine's own count, and resident. "calls/s" are empty calls, one open by each worker;
 * "against one" is that rate against a single worker's; "least" and "most" are the calls
 * of the worker that got fewest and of the one that got most, against an even share. */
#include "../c/rpc_crowd.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/process.h"

static rle_token token;
static char address[128];

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, rle_message());
    exit(1);
}

static rle_rpc *new_server(void)
{
    rle_rpc_options o = {.name = "server", .token = &token};
    rle_rpc *rpc;
    if (rle_rpc_new(&o, &rpc) != RLE_OK) fail("server");
    if (rle_rpc_listen(rpc, address, NULL) != RLE_OK) fail("listen");
    return rpc;
}

static rle_usage usage(void)
{
    rle_usage u;
    if (rle_process_usage(&u) != RLE_OK) fail("usage");
    return u;
}

static crowd_report ordered(rle_rpc *rpc, const crowd *c, crowd_order o, int64_t work)
{
    crowd_command(c, o);
    crowd_report r = crowd_serve(rpc, c, work);
    if (!r.there) exit(1);
    return r;
}

/* Of this process: the server. */
static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static double rate_of_one;

static void many(int count)
{
    if (!crowd_descriptors(count)) {
        printf("%7d   skipped: this user may not have so many descriptors\n", count);
        return;
    }
    crowd c = crowd_start(address + 5, &token);
    rle_rpc *rpc = new_server();
    ordered(rpc, &c, (crowd_order){.what = CROWD_CONNECT, .count = 1}, 0);
    rle_usage before = usage();
    size_t bytes = rle_mem_bytes();
    crowd_report joined = {0};
    if (count > 1)
        joined =
            ordered(rpc, &c, (crowd_order){.what = CROWD_CONNECT, .count = count - 1}, 0);
    rle_usage after = usage();
    bytes = rle_mem_bytes() - bytes;
    double cpu = cpu_seconds();
    crowd_report r = ordered(rpc, &c, (crowd_order){.what = CROWD_CALL, .seconds = 2}, 0);
    cpu = cpu_seconds() - cpu;
    double rate = (double)r.calls / r.seconds, share = (double)r.calls / count;
    if (count == 1) rate_of_one = rate;
    printf("%7d", count);
    if (count > 1)
        printf("   %6.0f   %5.1f KiB   %5.1f KiB", (count - 1) / joined.seconds,
               (double)bytes / (count - 1) / 1024,
               (double)(after.resident - before.resident) / (count - 1) / 1024);
    else
        printf("        -           -           -");
    printf("   %7d   %7.0f   %7.2f   %6.2f   %8.3f   %8.3f   %5.2f   %5.2f\n",
           after.threads - before.threads, rate, rate_of_one ? rate / rate_of_one : 0,
           cpu * 1e6 / (double)r.calls, r.p50 * 1e3, r.p99 * 1e3, (double)r.least / share,
           (double)r.most / share);
    fflush(stdout);
    crowd_end(&c);
    rle_rpc_free(rpc);
}

/* Everybody has one call open, but one worker as many as it may. */
static void greedy(int count, int open)
{
    crowd c = crowd_start(address + 5, &token);
    rle_rpc *rpc = new_server();
    ordered(rpc, &c, (crowd_order){.what = CROWD_CONNECT, .count = count}, 0);
    crowd_report r = ordered(
        rpc, &c, (crowd_order){.what = CROWD_CALL, .seconds = 2, .greedy = open}, 50000);
    double share = (double)r.calls / count;
    printf("%7d   %4d   %5.2f   %5.2f   %5.2f   %8.3f   %8.3f\n", count, open,
           (double)r.greedy / share, (double)r.least / share, (double)r.most / share,
           r.p50 * 1e3, r.p99 * 1e3);
    fflush(stdout);
    crowd_end(&c);
    rle_rpc_free(rpc);
}

int main(int argc, char **argv)
{
    char folder[] = "/tmp/rlengine-bench-XXXXXX";
    if (!mkdtemp(folder)) return 1;
    snprintf(address, sizeof address, "unix:%s/s", folder);
    rle_token_from_bytes("0123456789abcdef0123456789abcdef", 32, "bench", &token);
    rle_log_set_level(RLE_LOG_ERROR); /* that the crowd ends is no news here */
    printf(
        "workers   joins/s      engine    resident   threads   calls/s   against   us of "
        "    p50 ms     p99 ms   least    most\n"
        "                        each        each      more                 one     "
        "cpu\n");
    static const int counts[] = {1, 100, 1000, 10000};
    if (argc > 1)
        for (int i = 1; i < argc; i++) many(atoi(argv[i]));
    else
        for (int i = 0; i < 4; i++) many(counts[i]);
    printf("\nOne keeps many calls open, the others one each; a call takes 0.05 ms. "
           "Against an even share:\n"
           "workers   open   greedy   least    most     p50 ms     p99 ms\n");
    greedy(2, 64);
    greedy(8, 64);
    greedy(100, 64);
    rmdir(folder);
    return 0;
}
