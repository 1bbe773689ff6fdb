/* test_rpc_sim.c - remote calls in a simulated world without Lua: a hub and some workers
 * call each other while streams break and processes stop and die, for as many seeds as
 * wanted (RLE_SIM_SEEDS, from RLE_SIM_FIRST). A seed that fails is printed; the same seed
 * fails again. */
#include "rpc_pair.h"

#include "figure.h"
#include "rpc/sim.h"

enum { WORKERS = 4, CALLS = 40, OPEN_MAX = 6, ARG_MAX = 300 << 10 };
#define MS (RLE_SECONDS / 1000)

/* ---- what everybody knows: these lie outside of the processes ---- */

static char failure[512];
static uint64_t sent, acknowledged, executed, resolved;
enum { IDS = 1 << 16 };
static uint8_t runs[IDS]; /* how often a call was executed */
static int ids;           /* the last one; each number is used once */

__attribute__((format(printf, 1, 2))) static void fail_seed(const char *fmt, ...)
{
    if (failure[0]) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(failure, sizeof failure, fmt, ap);
    va_end(ap);
}

static void check(bool holds, const char *what)
{
    if (!holds) fail_seed("%s", what);
}

/* For the leak checker: the memory of a process that is killed in the middle of these. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:rle_rpc_connect\nleak:rle_wait_begin\n";
}

/* ---- a worker ---- */

typedef struct open_call {
    rle_future *f;
    int id, seen; /* seen: how often it was found resolved */
    int64_t deadline, overdue;
    uint64_t object; /* of the reference its result brought; 0: none */
} open_call;

typedef struct late_answer {
    rle_incoming *in;
    int id;
    size_t size;
    int64_t at;
} late_answer;

typedef struct actor {
    const char *name;
    bool hub;
    rle_sim_process *process;
    rle_rpc *rpc;
    open_call open[OPEN_MAX];
    int opened;
    late_answer late[64];
    int late_count;
    int calls_left;
    rle_waiter pace;
    bool pacing;
} actor;

static actor actors[WORKERS + 1];
static int hub_wanted; /* workers that are not done */

static void let_go(actor *a)
{
    if (!a->rpc) return;
    if (a->pacing) rle_wait_end(a->rpc, &a->pace);
    a->pacing = false;
    for (int i = 0; i < a->opened; i++) rle_future_release(a->rpc, a->open[i].f);
    a->opened = 0;
    for (int i = 0; i < a->late_count; i++) {
        rle_wire_error e = {.code = RLE_UNAVAILABLE, .outcome = RLE_OUTCOME_UNKNOWN};
        rle_incoming_fail(a->rpc, a->late[i].in, &e);
    }
    a->late_count = 0;
    rle_rpc_free(a->rpc);
    a->rpc = NULL;
}

static void actor_cleanup(void *arg)
{
    let_go(arg);
}

/* ---- serving ---- */

static void answer(actor *a, rle_incoming *in, int id, size_t size)
{
    rle_encoder e;
    rle_encoder_init(&e);
    uint64_t object = rle_sim_random(3) == 0 ? rle_export_new(a->rpc) : 0;
    rle_encode_result_head(&e, object ? 3 : 2);
    rle_encode_integer(&e, id + 1);
    char *text = calloc(1, size + 1);
    rle_encode_string(&e, text, size);
    free(text);
    if (object) {
        rle_wire_ref ref = {.kind = RLE_REF_SENDERS, .object = object, .class_name = "X"};
        rle_encode_ref(&e, &ref);
    }
    check(rle_incoming_reply(a->rpc, in, &e) == RLE_OK, "a result could not be sent");
    if (object) rle_export_unhold(a->rpc, object);
    rle_encoder_fini(&e);
}

static void serve(actor *a)
{
    rle_incoming_info info;
    rle_decoder d;
    rle_value id, size, text;
    rle_incoming *in;
    while ((in = rle_rpc_next_call(a->rpc, &info, &d)) != NULL) {
        check(rle_decode(&d, &id) == RLE_OK && rle_decode(&d, &size) == RLE_OK &&
                  rle_decode(&d, &text) == RLE_OK,
              "arguments changed on the way");
        check(text.u.string.len ==
                  (size_t)id.u.integer * 7919 % ARG_MAX % (size_t)size.u.integer,
              "the length of an argument changed");
        rle_incoming_read(a->rpc, in);
        executed++;
        if (++runs[id.u.integer % IDS] > 1)
            fail_seed("call %d was executed twice", (int)id.u.integer);
        int64_t wait = rle_sim_random(2) ? 0 : (int64_t)rle_sim_random(400) * MS;
        if (wait && a->late_count < 64)
            a->late[a->late_count++] = (late_answer){
                in, (int)id.u.integer, rle_sim_random(2000), rle_now() + wait};
        else
            answer(a, in, (int)id.u.integer,
                   rle_sim_random(20) == 0 ? rle_sim_random(ARG_MAX)
                                           : rle_sim_random(100));
    }
    for (int i = 0; i < a->late_count; i++) {
        if (a->late[i].at > rle_now()) continue;
        late_answer l = a->late[i];
        a->late[i--] = a->late[--a->late_count];
        answer(a, l.in, l.id, l.size);
    }
    while (rle_rpc_next_cancelled(a->rpc)) {
    }
    while (rle_rpc_next_dropped(a->rpc)) {
    }
    rle_member_change change;
    while (rle_rpc_next_member(a->rpc, &change)) {
    }
}

/* ---- calling ---- */

static void make_call(actor *a)
{
    int other = (int)rle_sim_random(WORKERS + 1);
    if (&actors[other] == a) return;
    int id = ++ids % IDS;
    runs[id] = 0;
    size_t most = rle_sim_random(8) == 0 ? ARG_MAX : 200;
    char *text = calloc(1, ARG_MAX);
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "work", 3);
    rle_encode_integer(&e, id);
    rle_encode_integer(&e, (int64_t)most);
    rle_encode_string(&e, text, (size_t)id * 7919 % ARG_MAX % most);
    free(text);
    int64_t timeout = (int64_t)(1 + rle_sim_random(rle_sim_random(2) ? 50 : 10000)) * MS;
    rle_call_spec spec = {.peer = rle_rpc_peer(a->rpc, actors[other].name),
                          .method = "work",
                          .timeout = timeout,
                          .nested = rle_sim_random(4) == 0};
    open_call *o = &a->open[a->opened];
    *o = (open_call){.id = id, .deadline = rle_now() + timeout};
    if (rle_rpc_call(a->rpc, &spec, &e, &o->f) == RLE_OK) a->opened++;
    rle_encoder_fini(&e);
    sent++;
    a->calls_left--;
}

static void read_result(actor *a, open_call *o)
{
    rle_msg *m = rle_future_message(o->f);
    rle_decoder d;
    uint16_t count;
    rle_value id, text, ref;
    rle_msg_decoder(m, &d);
    check(rle_decode_result_head(&d, &count) == RLE_OK && rle_decode(&d, &id) == RLE_OK &&
              rle_decode(&d, &text) == RLE_OK,
          "a result changed on the way");
    check(id.u.integer == o->id + 1, "a result of another call came");
    check(runs[o->id] == 1, "a call was acknowledged that was not executed");
    uint64_t object = 0;
    if (count == 3) {
        check(rle_decode(&d, &ref) == RLE_OK && ref.kind == RLE_VALUE_REF,
              "no reference came");
        object = ref.u.ref.object;
    }
    rle_future_read(a->rpc, o->f);
    acknowledged++;
    if (object && rle_sim_random(2))
        rle_ref_discard(a->rpc, rle_future_peer(o->f), rle_future_session(o->f), object,
                        1);
}

/* Those that are over are let go of; `passed`: since the last look, while this ran. */
static void look_at_calls(actor *a, int64_t passed)
{
    for (int i = 0; i < a->opened; i++) {
        open_call *o = &a->open[i];
        rle_future_state state = rle_future_status(a->rpc, o->f);
        if (state == RLE_FUTURE_PENDING) {
            if (rle_now() > o->deadline) o->overdue += passed;
            if (o->overdue > RLE_SECONDS)
                fail_seed("call %d of %s is not over 1 s after its deadline", o->id,
                          a->name);
            if (rle_sim_random(300) == 0) rle_future_cancel(a->rpc, o->f);
            continue;
        }
        resolved++;
        if (state == RLE_FUTURE_DONE) {
            read_result(a, o);
        } else {
            rle_wire_error e;
            check(rle_error_decode(rle_future_message(o->f), &e) == RLE_OK,
                  "a malformed error");
            check(e.code != RLE_INVALID_ARGUMENT && e.code != RLE_INTERNAL &&
                      e.code != RLE_DATA_LOSS,
                  "a call failed as it must not");
            if (e.outcome == RLE_OUTCOME_NOT_EXECUTED && runs[o->id])
                fail_seed("call %d ran, but its failure says it did not: %.*s", o->id,
                          (int)e.message.n, e.message.p);
        }
        rle_future_release(a->rpc, o->f);
        *o = a->open[--a->opened];
        i--;
    }
}

/* ---- life of a worker ---- */

static void make_worker(actor *a)
{
    rle_rpc_options o = {.name = a->name,
                         .token = &test_token,
                         .heartbeat = 300 * MS,
                         .peer_timeout = RLE_SECONDS,
                         .max_credits = 1 + (int)rle_sim_random(8),
                         .max_concurrent = 1 + (int)rle_sim_random(8)};
    char address[2][64];
    const char *hint[] = {address[0], address[1]};
    if (rle_rpc_new(&o, &a->rpc) != RLE_OK) fail_seed("no worker: %s", rle_message());
    for (int i = 0; i <= WORKERS; i++) {
        snprintf(address[0], sizeof *address, "unix:/sim/%s.sock", actors[i].name);
        snprintf(address[1], sizeof *address, "tcp://127.0.0.1:%d", 5000 + i);
        bool other = &actors[i] != a;
        if (other && !actors[i].hub)
            rle_peer_hint(a->rpc, rle_rpc_peer(a->rpc, actors[i].name),
                          hint + rle_sim_random(2), 1);
        if (other) continue;
        for (int k = 0; k < 2; k++)
            if (rle_rpc_listen(a->rpc, address[k], NULL) != RLE_OK)
                fail_seed("%s cannot listen on %s: %s", a->name, address[k],
                          rle_message());
    }
}

static void join_hub(actor *a)
{
    rle_peer *hub = rle_rpc_peer(a->rpc, actors[0].name);
    if (rle_peer_connected(a->rpc, hub)) return;
    const char *address = rle_sim_random(2) ? "unix:/sim/hub.sock" : "127.0.0.1:5000";
    rle_status s = rle_rpc_connect(a->rpc, address, 2 * RLE_SECONDS, NULL);
    if (s != RLE_OK && s != RLE_UNAVAILABLE && s != RLE_ALREADY_EXISTS)
        fail_seed("%s cannot connect: %s", a->name, rle_message());
}

static bool busy(const actor *a)
{
    if (a->opened || a->late_count) return true;
    return a->hub ? hub_wanted > 0 : a->calls_left > 0;
}

static int actor_main(void *arg)
{
    actor *a = arg;
    make_worker(a);
    int64_t before = rle_now(), joined = 0;
    while (busy(a) && !failure[0]) {
        int64_t now = rle_now(), passed = now - before;
        before = now;
        if (!a->hub && now - joined > RLE_SECONDS / 2) {
            join_hub(a);
            joined = rle_now();
        }
        serve(a);
        look_at_calls(a, passed < 150 * MS ? passed : 0);
        while (a->opened < OPEN_MAX && a->calls_left > 0 && rle_sim_random(2))
            make_call(a);
        a->pace.owner = NULL;
        rle_wait_begin(a->rpc, &a->pace, NULL, 0, RLE_WAIT_ALL,
                       rle_now() + (int64_t)(1 + rle_sim_random(100)) * MS);
        a->pacing = true;
        rle_rpc_turn(a->rpc, true);
        rle_wait_end(a->rpc, &a->pace);
        a->pacing = false;
    }
    if (!a->hub) hub_wanted--;
    rle_rpc_stop(a->rpc);
    for (int i = 0; i < 50; i++) {
        serve(a);
        rle_rpc_turn(a->rpc, false);
    }
    rle_rpc_counters c;
    rle_rpc_count(a->rpc, &c);
    check(c.live_futures == 0 || failure[0], "futures are left");
    return 0;
}

/* ---- seeds ---- */

static void write_event(void *file, const char *line)
{
    fprintf(file, "%s\n", line);
}

static rle_sim_summary run_seed(uint64_t seed, const char *faults)
{
    failure[0] = 0;
    sent = acknowledged = executed = resolved = 0;
    ids = 0;
    size_t blocks = rle_mem_blocks();
    rle_sim_options o = {.seed = seed, .hours = 1};
    assert_int_equal(rle_sim_parse_faults(faults, &o), RLE_OK);
    const char *log = getenv("RLE_SIM_LOG");
    FILE *file = log ? fopen(log, "w") : NULL;
    if (file) o.event = write_event;
    o.self = file;
    assert_int_equal(rle_sim_begin(&o), RLE_OK);
    static const char *const names[WORKERS + 1] = {"hub", "w1", "w2", "w3", "w4"};
    hub_wanted = WORKERS;
    for (int i = 0; i <= WORKERS; i++) {
        actors[i] = (actor){.name = names[i], .hub = i == 0, .calls_left = i ? CALLS : 0};
        rle_sim_program p = {.name = names[i],
                             .main = actor_main,
                             .cleanup = actor_cleanup,
                             .arg = &actors[i],
                             .killable = true,
                             .again = true};
        assert_int_equal(rle_sim_spawn(&p, &actors[i].process), RLE_OK);
    }
    if (rle_sim_run() != RLE_OK) fail_seed("%s", rle_message());
    rle_sim_summary sum;
    rle_sim_end(&sum);
    if (file) fclose(file);
    if (!failure[0]) {
        check(acknowledged <= executed && executed <= sent,
              "more answers or runs than calls");
        check(resolved <= sent, "more ends than calls");
        if (!sum.all_faults)
            check(acknowledged * 5 > sent, "most calls failed, though nothing broke");
        /* What lay on the stack of a killed one is not given back by anybody. */
        check(rle_mem_blocks() == blocks || sum.faults[RLE_SIM_KILL],
              "memory was left behind");
    }
    if (failure[0])
        fail_msg("seed %d failed: %s; repeat with RLE_SIM_FIRST=%d RLE_SIM_SEEDS=1 and "
                 "look at "
                 "RLE_SIM_LOG=file (faults: %s)",
                 (int)seed, failure, (int)seed, faults);
    return sum;
}

static int number_of(const char *variable, int otherwise)
{
    const char *text = getenv(variable);
    return text ? atoi(text) : otherwise;
}

static const char *const worlds[] = {
    "none",        "cut=0.4", "stop=1,slow=1", "kill=0.7", "half_open=1,refuse=1",
    "partition=3", "all=2",
};

static void f46_any_seed_keeps_the_promises(void **state)
{
    (void)state;
    int seeds = number_of("RLE_SIM_SEEDS", getenv("RLE_FULL") ? 10000 : 300);
    int first = number_of("RLE_SIM_FIRST", 1);
    uint64_t faults = 0, sends = 0;
    int64_t time = 0;
    for (int seed = first; seed < first + seeds; seed++) {
        rle_sim_summary sum = run_seed(
            (uint64_t)seed, worlds[seed % (int)(sizeof worlds / sizeof *worlds)]);
        faults += sum.all_faults;
        sends += sum.sends;
        time += sum.time;
    }
    figure("F46",
           "%d seeds without Lua: %.1f h of virtual time, %llu writes, %llu faults",
           seeds, (double)time / 3600e9, (unsigned long long)sends,
           (unsigned long long)faults);
}

static void the_same_seed_gives_the_same_run(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        rle_sim_summary a = run_seed(7 + (uint64_t)i, "all=5"),
                        b = run_seed(7 + (uint64_t)i, "all=5");
        assert_memory_equal(&a, &b, sizeof a);
        assert_true(a.sends > 100 && a.time > RLE_SECONDS / 2);
    }
    rle_sim_summary a = run_seed(1, "all=5"), b = run_seed(2, "all=5");
    assert_true(a.trace != b.trace);
}

static void faults_are_written_in_words(void **state)
{
    (void)state;
    rle_sim_options o = {0};
    assert_int_equal(rle_sim_parse_faults("cut=20,stop,hours=0.5,from=3", &o), RLE_OK);
    assert_true(o.every[RLE_SIM_CUT] == 20 && o.every[RLE_SIM_STOP] == 10 &&
                o.hours == 0.5 && o.from == 3);
    assert_true(o.every[RLE_SIM_KILL] == 0);
    assert_int_equal(rle_sim_parse_faults("all", &o), RLE_OK);
    assert_true(o.every[RLE_SIM_KILL] == 10);
    assert_int_equal(rle_sim_parse_faults("cuts", &o), RLE_INVALID_ARGUMENT);
    assert_non_null(strstr(rle_message(), "unknown \"cuts\""));
    assert_int_equal(rle_sim_parse_faults("cut=0", &o), RLE_INVALID_ARGUMENT);
    assert_int_equal(rle_sim_parse_faults("cut=", &o), RLE_INVALID_ARGUMENT);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(faults_are_written_in_words),
        TEST(the_same_seed_gives_the_same_run),
        TEST(f46_any_seed_keeps_the_promises),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
