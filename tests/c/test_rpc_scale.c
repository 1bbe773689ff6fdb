/* Many workers at one: what each of them costs, that they take turns, that none is lost.
 * 200 of them; RLE_FULL=1 brings 1,000 and 10,000. */
#include "rpc_pair.h"

#include "base/process.h"
#include "figure.h"
#include "rpc_crowd.h"

static crowd_report ordered(rle_rpc *rpc, const crowd *c, crowd_order o, int64_t work)
{
    crowd_command(c, o);
    crowd_report r = crowd_serve(rpc, c, work);
    assert_true(r.there);
    return r;
}

static rle_usage usage(void)
{
    rle_usage u;
    assert_int_equal(rle_process_usage(&u), RLE_OK);
    return u;
}

static rle_rpc *server(void)
{
    rle_rpc_options o = {.name = "server", .token = &test_token};
    rle_rpc *rpc = NULL;
    assert_int_equal(rle_rpc_new(&o, &rpc), RLE_OK);
    assert_int_equal(rle_rpc_listen(rpc, test_address, NULL), RLE_OK);
    return rpc;
}

static void many(int count)
{
    if (!crowd_descriptors(count)) {
        print_message("%d workers: skipped, this user may not have so many descriptors\n",
                      count);
        return;
    }
    crowd c = crowd_start(test_address + 5, &test_token);
    rle_rpc *rpc = server();
    /* The first one brings what the others share; and two of each are there to come
     * again. */
    ordered(rpc, &c, (crowd_order){.what = CROWD_CONNECT, .count = 1}, 0);
    rle_usage before = usage();
    size_t bytes = rle_mem_bytes();
    crowd_report joined =
        ordered(rpc, &c, (crowd_order){.what = CROWD_CONNECT, .count = count - 1}, 0);
    rle_usage idle = usage();
    size_t engine = (rle_mem_bytes() - bytes) / (size_t)(count - 1);
    size_t resident = idle.resident > before.resident
                          ? (idle.resident - before.resident) / (size_t)(count - 1)
                          : 0;
    assert_int_equal(idle.descriptors, before.descriptors + count - 1);
    assert_int_equal(idle.threads, before.threads);
    assert_true(engine <= 2 << 10);
    assert_true(resident <= 16 << 10);
    crowd_order calls = {.what = CROWD_CALL, .seconds = count > 500 ? count / 500.0 : 1};
    crowd_report r = ordered(rpc, &c, calls, 0);
    double share = (double)r.calls / count;
    figure("F24",
           "%d workers: %.0f join a second, %.1f KiB each (%.1f KiB resident), no thread "
           "more; %.0f calls a second, half of them within %.1f ms, 99 %% within %.1f "
           "ms; least %.2f, most %.2f of an even share",
           count, (count - 1) / joined.seconds, (double)engine / 1024,
           (double)resident / 1024, (double)r.calls / r.seconds, r.p50 * 1e3, r.p99 * 1e3,
           (double)r.least / share, (double)r.most / share);
    /* Ten times as many, and more, where nothing else runs. */
    assert_true((count - 1) / joined.seconds >= 200);
    /* Many calls each, or a worker that had a single one less than others would be
     * blamed. */
    if (share >= 20) {
        assert_true((double)r.least >= share / 2);
        assert_true((double)r.most <= share * 2);
    }
    if (share >= 5) assert_true(r.least > 0);
    rle_usage busy = usage();
    assert_int_equal(busy.threads, before.threads);
    ordered(rpc, &c, (crowd_order){.what = CROWD_LEAVE, .count = count - 1}, 0);
    for (int i = 0; i < 500 && usage().descriptors > before.descriptors; i++) {
        rle_rpc_turn(rpc, false);
        usleep(10000);
    }
    assert_int_equal(usage().descriptors, before.descriptors);
    crowd_end(&c);
    rle_rpc_free(rpc);
}

static void f24_many_workers_are_small_and_served_evenly(void **state)
{
    (void)state;
    many(200);
    if (!getenv("RLE_FULL")) return;
    many(1000);
    many(10000);
}

static void f24_a_greedy_worker_keeps_nobody_waiting(void **state)
{
    (void)state;
    crowd c = crowd_start(test_address + 5, &test_token);
    rle_rpc *rpc = server();
    ordered(rpc, &c, (crowd_order){.what = CROWD_CONNECT, .count = 8}, 0);
    crowd_order calls = {.what = CROWD_CALL, .seconds = 1, .greedy = 64};
    crowd_report r;
    double share;
    /* Who is not let run calls less often: again where something else had the machine. */
    for (int i = 0; i < 8; i++) {
        r = ordered(rpc, &c, calls, 100000);
        share = (double)r.calls / 8;
        if ((double)r.least >= share / 2) break;
    }
    figure("F24",
           "one of 8 workers keeps 64 calls open: least of the others %.2f of an even "
           "share, the greedy one %.2f",
           (double)r.least / share, (double)r.greedy / share);
    assert_true((double)r.least >= share / 2);
    crowd_end(&c);
    rle_rpc_free(rpc);
}

/* Names of the callers of `count` calls, in the order in which they start; "": none is
 * left. */
static void started(rle_rpc *rpc, rle_incoming **calls, char *who, int count)
{
    for (int i = 0; i < count; i++) {
        rle_incoming_info info;
        rle_decoder d;
        calls[i] = rle_rpc_next_call(rpc, &info, &d);
        who[i] = calls[i] ? rle_peer_name(info.caller)[0] : ' ';
    }
    who[count] = 0;
}

static void workers_take_turns(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    rle_rpc *c = worker("c", NULL);
    rle_peer *to_a = link_to(c, p.a);
    rle_future *f[5];
    for (int i = 0; i < 3; i++) f[i] = call(p.b, p.to_a, "f", i);
    turn(p.a, NULL);
    for (int i = 3; i < 5; i++) f[i] = call(c, to_a, "f", i);
    turn(p.a, NULL);
    turn(p.a, NULL);
    rle_incoming *calls[6];
    char who[7];
    started(p.a, calls, who, 6);
    assert_string_equal(who, "bcbcb ");
    rle_wire_error e = {.code = RLE_UNKNOWN};
    for (int i = 0; i < 5; i++) rle_incoming_fail(p.a, calls[i], &e);
    for (int i = 0; i < 5; i++) {
        wait_for(p.a, i < 3 ? p.b : c, i < 3 ? p.b : c, f[i]);
        rle_future_release(i < 3 ? p.b : c, f[i]);
    }
    rle_rpc_free(c);
    free_pair(&p);
}

/* The error of a queued call is what finds out that the other side is gone. */
static void a_call_is_refused_though_nobody_is_there(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    raw r = raw_join(a, "raw");
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "f", 0);
    for (int i = 1; i <= 3; i++)
        raw_send(&r, (rle_frame){.type = RLE_FRAME_CALL, .id = (uint64_t)i},
                 e.w.data + RLE_FRAME_HEADER, rle_encoder_values_size(&e));
    rle_encoder_fini(&e);
    rle_rpc_counters before, after;
    rle_rpc_count(a, &before);
    assert_int_equal(before.live_incoming, 3);
    close(r.fd);
    rle_rpc_stop(a); /* answers them */
    turn(a, NULL);
    rle_rpc_count(a, &after);
    assert_int_equal(after.live_incoming, 0);
    rle_rpc_free(a);
}

static int logged_times(const char *part)
{
    int n = 0;
    for (int i = 0; i < test_log_count && i < 64; i++)
        n += strstr(test_log[i], part) != NULL;
    return n;
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static void f25_without_descriptors_those_who_are_there_are_served(void **state)
{
    (void)state;
    struct rlimit before, low;
    getrlimit(RLIMIT_NOFILE, &before);
    crowd there = crowd_start(test_address + 5, &test_token);
    crowd more = crowd_start(test_address + 5, &test_token);
    rle_rpc *rpc = server();
    ordered(rpc, &there, (crowd_order){.what = CROWD_CONNECT, .count = 8}, 0);
    crowd_order calls = {.what = CROWD_CALL, .seconds = 0.5};
    crowd_report usual = ordered(rpc, &there, calls, 0);
    int held = usage().descriptors;
    low = (struct rlimit){64, before.rlim_max};
    assert_true(held < 60);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    crowd_command(&more, (crowd_order){.what = CROWD_CONNECT, .count = 100});
    crowd_report full = {0};
    /* Again where something else had the machine meanwhile. */
    for (int i = 0; i < 8 && (double)full.calls <= 0.3 * (double)usual.calls; i++)
        full = ordered(rpc, &there, calls, 0);
    assert_int_equal(logged_times("accepting paused: 64 of 64 file descriptors in use"),
                     1);
    double cpu = cpu_seconds();
    crowd_report rest =
        ordered(rpc, &there, (crowd_order){.what = CROWD_REST, .seconds = 1}, 0);
    cpu = (cpu_seconds() - cpu) / rest.seconds;
    assert_true(cpu < 0.2);
    assert_true((double)full.calls > 0.3 * (double)usual.calls);
    assert_int_equal(logged_times("accepting paused"), 1);
    assert_int_equal(logged_times("accepting again"), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    int64_t begin = rle_now();
    crowd_report joined = crowd_serve(rpc, &more, 0);
    double took = (double)(rle_now() - begin) * 1e-9;
    assert_true(joined.there);
    assert_true(took < 5);
    for (int i = 0; i < 200 && !logged("accepting again"); i++) {
        rle_rpc_turn(rpc, false);
        usleep(5000);
    }
    assert_int_equal(logged_times("accepting again"), 1);
    figure(
        "F25",
        "100 workers at a limit of 64 descriptors: %.1f %% of a processor, 99 %% of the "
        "others' calls within %.2f ms (before: %.2f ms), all had joined %.2f s after "
        "there "
        "were descriptors again",
        cpu * 100, full.p99 * 1e3, usual.p99 * 1e3, took);
    crowd_end(&more);
    crowd_end(&there);
    rle_rpc_free(rpc);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(workers_take_turns),
        TEST(a_call_is_refused_though_nobody_is_there),
        TEST(f24_many_workers_are_small_and_served_evenly),
        TEST(f25_without_descriptors_those_who_are_there_are_served),
        TEST(f24_a_greedy_worker_keeps_nobody_waiting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
