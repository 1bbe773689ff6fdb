/* test_rpc_lost.c - a worker is lost, and whoever hears that his call failed does at once
 * what he likes: makes calls, cancels and releases others, stops. Each call ends once all
 * the same, and nothing is left. */
#include "rpc/service.h"
#include "rpc_link.h"

enum { CALLS = 3000 };

typedef struct scene scene;

/* One call to the worker that is lost. */
typedef struct caller {
    scene *scene;
    rle_future *f; /* NULL: released */
    int heard;
    bool dropped, open; /* open: on the connection that is lost */
} caller;

struct scene {
    pair p;
    rle_rpc *other;
    rle_peer *to_other;
    rle_encoder e;
    caller callers[CALLS];
    rle_future *more[2 * CALLS]; /* made by those that heard */
    int heard, made, stop_after;
    bool most;  /* the first drops most of the others */
    bool quiet; /* they only hear */
};

static void begin(scene *s, rle_peer *to, rle_service_over *over, void *self, bool nested,
                  rle_future **out)
{
    rle_call_spec spec = {.peer = to, .method = "work", .nested = nested, .quiet = true};
    begin_call(&s->e, "work", 0);
    assert_int_equal(rle_service_call(s->p.b, &spec, &s->e, over, self, out), RLE_OK);
}

static void drop(caller *c)
{
    if (!c->f) return;
    c->dropped = !c->heard;
    rle_service_drop(c->f);
    c->f = NULL;
}

static void heard(rle_future *f, void *self)
{
    caller *c = self;
    scene *s = c->scene;
    assert_false(c->dropped);
    assert_int_equal(++c->heard, 1);
    assert_int_equal(rle_service_status(f), RLE_FUTURE_FAILED);
    s->heard++;
    if (s->quiet) return;
    /* Of those before and behind it, whichever those are in the tables: of many most at
     * once. */
    ptrdiff_t at = c - s->callers;
    for (int i = 0; s->most && s->heard == 1 && i < CALLS; i++)
        if (i % 16 && i != at) drop(&s->callers[i]);
    drop(&s->callers[(at + 1) % CALLS]);
    drop(&s->callers[(at + CALLS / 2) % CALLS]);
    if (at % 3 == 0) drop(c);
    if (at % 2) begin(s, s->to_other, NULL, NULL, at % 4 == 1, &s->more[s->made++]);
    if (at % 2 == 0) begin(s, s->p.to_a, NULL, NULL, at % 4 == 0, &s->more[s->made++]);
    if (s->heard == s->stop_after) rle_rpc_stop(s->p.b);
}

/* "b" has calls at "a" of which some are held for want of credit, and knows "c". */
static void play(scene *s, bool sought)
{
    rle_rpc_options few = {.max_credits = 16, .max_concurrent = 16};
    rle_rpc_counters count;
    char address[160];
    s->p.a = listener(&few);
    s->p.b = worker("b", NULL);
    s->p.to_a = sought ? join(s->p.b, test_address, s->p.a) : link_to(s->p.b, s->p.a);
    s->other = worker("c", NULL);
    snprintf(address, sizeof address, "unix:%s/c.sock", test_folder);
    assert_int_equal(rle_rpc_listen(s->other, address, NULL), RLE_OK);
    s->to_other = link_to(s->p.b, s->other);
    rle_encoder_init(&s->e);
    rle_rpc_enter(s->p.b);
    for (int i = 0; i < CALLS; i++) {
        s->callers[i].scene = s;
        begin(s, s->p.to_a, heard, &s->callers[i], i % 5 == 0, &s->callers[i].f);
    }
    size_t open = 0;
    for (int i = 0; i < CALLS; i++) open += s->callers[i].open = s->callers[i].f->conn;
    size_t held = s->p.to_a->held_count;
    assert_true(held > CALLS / 2);
    rle_rpc_leave(s->p.b);

    cut(s->p.b, s->p.to_a);
    assert_true(s->heard > 0);
    assert_int_equal(open, CALLS - (int)held);
    int left = 0;
    rle_rpc_enter(s->p.b);
    for (int i = 0; i < CALLS; i++) {
        caller *c = &s->callers[i];
        bool over = c->heard || c->dropped;
        left += !over;
        if (c->open) assert_true(over);
        if (!over) assert_int_equal(rle_service_status(c->f), RLE_FUTURE_PENDING);
        drop(c);
    }
    for (int i = 0; i < s->made; i++) rle_service_drop(s->more[i]);
    assert_null(s->p.to_a->held);
    assert_int_equal(s->p.to_a->held_count, 0);
    assert_int_equal(s->p.to_a->held_nested, 0);
    assert_ptr_equal(s->p.to_a->held_end, &s->p.to_a->held);
    rle_rpc_leave(s->p.b);
    /* Only what waits for "a" is not over: it is looked for, or was called again. */
    if (s->stop_after || (!sought && s->quiet)) assert_int_equal(left, 0);
    assert_int_equal(rle_rpc_stopping(s->p.b), s->stop_after > 0);
    for (int i = 0; i < 20; i++) turn(s->p.b, s->other);
    rle_rpc_count(s->p.b, &count);
    assert_int_equal(count.live_futures, 0);
    if (s->stop_after) assert_false(rle_link_seeks(s->p.to_a));
    rle_encoder_fini(&s->e);
    rle_rpc_free(s->other);
    free_pair(&s->p);
}

static void who_hears_does_what_he_likes(void **state)
{
    (void)state;
    size_t blocks = rle_mem_blocks(), fds = open_fds();
    for (int sought = 0; sought < 2; sought++)
        for (int stop = 0; stop <= 8; stop += stop ? 7 : 1) {
            static scene s;
            memset(&s, 0, sizeof s);
            s.stop_after = stop;
            s.most = true;
            play(&s, sought);
        }
    assert_int_equal(rle_mem_blocks(), blocks);
    assert_int_equal(open_fds(), fds);
}

static void who_only_hears_hears_once(void **state)
{
    (void)state;
    for (int sought = 0; sought < 2; sought++) {
        static scene s;
        memset(&s, 0, sizeof s);
        s.quiet = true;
        play(&s, sought);
        int heard = 0;
        for (int i = 0; i < CALLS; i++) heard += s.callers[i].heard;
        assert_int_equal(heard, s.heard);
        if (!sought) assert_int_equal(heard, CALLS);
    }
}

/* A call that was on its way may have run, also for who cancels it before it has failed.
 */
static rle_future *second;

static void cancels_the_second(rle_future *f, void *self)
{
    (void)f;
    (void)self;
    rle_future_withdraw(second);
}

static void what_is_cancelled_meanwhile_may_have_run(void **state)
{
    (void)state;
    static scene s;
    memset(&s, 0, sizeof s);
    s.p = make_pair(NULL, NULL);
    rle_encoder_init(&s.e);
    rle_future *calls[2];
    rle_rpc_enter(s.p.b);
    /* Whichever fails first cancels the other one. */
    for (int i = 0; i < 2; i++) begin(&s, s.p.to_a, NULL, NULL, false, &calls[i]);
    rle_rpc_leave(s.p.b);
    size_t first = 2;
    RLE_MAP_EACH(&s.p.to_a->conn->calls, slot)
    if (first == 2) first = slot->v.pointer == calls[1];
    calls[first]->over = cancels_the_second;
    second = calls[!first];
    cut(s.p.b, s.p.to_a);
    rle_wire_error e;
    rle_msg *m = rle_future_message(second);
    assert_non_null(m);
    assert_int_equal(rle_error_decode(m, &e), RLE_OK);
    assert_int_equal(e.code, RLE_CANCELLED);
    assert_int_equal(e.outcome, RLE_OUTCOME_UNKNOWN);
    for (int i = 0; i < 2; i++) rle_future_release(s.p.b, calls[i]);
    rle_encoder_fini(&s.e);
    free_pair(&s.p);
}

/* References went with the connection: calls that use one fail, others wait. */
static void held_calls_of_references(void **state)
{
    (void)state;
    static scene s;
    memset(&s, 0, sizeof s);
    rle_rpc_options few = {.max_credits = 1, .max_concurrent = 1};
    s.p.a = listener(&few);
    s.p.b = worker("b", NULL);
    s.p.to_a = join(s.p.b, test_address, s.p.a);
    s.to_other = s.p.to_a;
    rle_encoder_init(&s.e);
    rle_rpc_enter(s.p.b);
    uint64_t session = s.p.to_a->conn->session;
    for (int i = 0; i < CALLS; i++) {
        s.callers[i].scene = &s;
        begin(&s, s.p.to_a, heard, &s.callers[i], false, &s.callers[i].f);
        if (i % 2) s.callers[i].f->want_session = session;
    }
    assert_int_equal(s.p.to_a->held_count, CALLS - 1);
    rle_rpc_leave(s.p.b);
    cut(s.p.b, s.p.to_a);
    rle_rpc_enter(s.p.b);
    for (int i = 0; i < CALLS; i++) {
        caller *c = &s.callers[i];
        if (i % 2) assert_true(c->heard || c->dropped);
        if (i % 2 == 0 && i) assert_int_equal(c->heard, 0);
        drop(c);
    }
    for (int i = 0; i < s.made; i++) rle_service_drop(s.more[i]);
    rle_rpc_leave(s.p.b);
    rle_rpc_counters count;
    rle_rpc_count(s.p.b, &count);
    assert_int_equal(count.live_futures, 0);
    rle_encoder_fini(&s.e);
    free_pair(&s.p);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(who_hears_does_what_he_likes),
        TEST(who_only_hears_hears_once),
        TEST(what_is_cancelled_meanwhile_may_have_run),
        TEST(held_calls_of_references),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
