/* test_rpc_refs.c - the life of references: made, sent, passed on, given back late, and lost with
 * their workers, at random among three. No object goes while anybody has it; when nobody has
 * any, every table is empty and every byte is back. */
#include "figure.h"
#include "rpc_pair.h"
#include "shifted_clock.h"

enum { WORKERS = 3 };

/* What the test knows of one object. */
typedef struct thing {
    uint8_t held[WORKERS];    /* references there, at the owner its own holds */
    uint8_t transit[WORKERS]; /* sent there, not read yet */
    uint8_t tickets;
    bool gone;
} thing;

typedef struct ticket {
    int owner, to;
    uint64_t number;
    uint8_t bytes[RLE_TICKET_SIZE];
} ticket;

static struct node {
    rle_rpc *rpc;
    char address[128];
    thing *things; /* by number */
    size_t made, cap, live;
} node[WORKERS];

static ticket tickets[64];
static int ticket_count;
static uint64_t seed = 1, made, dropped, kills, passed;

static uint32_t draw(uint32_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

static const char *name_of(int w)
{
    static const char *const names[WORKERS] = {"a", "b", "c"};
    return names[w];
}

static void turn_all(int n)
{
    for (; n; n--)
        for (int w = 0; w < WORKERS; w++) rle_rpc_turn(node[w].rpc, false);
}

static void start(int w)
{
    node[w].rpc = worker(name_of(w), NULL);
    snprintf(node[w].address, sizeof node[w].address, "unix:%s/%s.sock", test_folder, name_of(w));
    assert_int_equal(rle_rpc_listen(node[w].rpc, node[w].address, NULL), RLE_OK);
}

/* Every pair of workers is connected. */
static void connect_all(void)
{
    for (int i = 0; i < WORKERS; i++) {
        for (int k = 0; k < i; k++) {
            rle_peer *peer = rle_rpc_peer(node[i].rpc, name_of(k));
            if (!rle_peer_connected(node[i].rpc, peer)) link_to(node[i].rpc, node[k].rpc);
            for (int n = 0; n < 100 && !rle_peer_connected(node[i].rpc, peer); n++) turn_all(1);
            assert_true(rle_peer_connected(node[i].rpc, peer));
        }
    }
}

static void make(int w)
{
    struct node *o = &node[w];
    uint64_t number = rle_export_new_at(o->rpc, 0);
    assert_int_equal(number, o->made + 1);
    if (o->made + 1 >= o->cap) {
        o->cap = o->cap ? 2 * o->cap : 1024;
        o->things = realloc(o->things, o->cap * sizeof *o->things);
    }
    o->things[++o->made] = (thing){.held[0] = w == 0, .held[1] = w == 1, .held[2] = w == 2};
    o->live++;
    made++;
}

static bool anybody(const thing *t)
{
    bool any = t->tickets > 0;
    for (int w = 0; w < WORKERS; w++) any = any || t->held[w] || t->transit[w];
    return any;
}

/* Objects nobody refers to any more: rightly so? */
static void look_at_dropped(int w)
{
    uint64_t number;
    while ((number = rle_rpc_next_dropped(node[w].rpc)) != 0) {
        thing *t = &node[w].things[number];
        assert_false(t->gone);
        assert_false(anybody(t));
        t->gone = true;
        node[w].live--;
        dropped++;
    }
}

static void send_ref(int from, int to, int owner, uint64_t number, rle_ref_kind kind)
{
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "take", 2);
    rle_encode_integer(&e, owner);
    rle_encode_ref(&e, &(rle_wire_ref){.kind = kind, .object = number});
    rle_future *f = call_with(node[from].rpc, rle_rpc_peer(node[from].rpc, name_of(to)), "take",
                              &e, 0, true);
    assert_int_equal(rle_future_status(node[from].rpc, f), RLE_FUTURE_PENDING);
    rle_encoder_fini(&e);
    rle_future_release(node[from].rpc, f);
}

/* Read what came: a reference more is held here. Or nobody reads it: it goes back. */
static void serve(int w)
{
    rle_incoming_info info;
    rle_decoder d;
    rle_incoming *in = rle_rpc_next_call(node[w].rpc, &info, &d);
    if (!in) return;
    rle_value owner, ref;
    assert_int_equal(rle_decode(&d, &owner), RLE_OK);
    assert_int_equal(rle_decode(&d, &ref), RLE_OK);
    assert_int_equal(ref.kind, RLE_VALUE_REF);
    thing *t = &node[owner.u.integer].things[ref.u.ref.object];
    if (ref.u.ref.kind == RLE_REF_SENDERS) {
        t->transit[w]--;
        if (draw(8) != 0) {
            rle_incoming_read(node[w].rpc, in);
            t->held[w]++;
        }
    } else {
        assert_int_equal(owner.u.integer, w); /* it came home, which takes and gives nothing */
        rle_incoming_read(node[w].rpc, in);
    }
    rle_encoder e;
    rle_encoder_init(&e);
    rle_encode_result_head(&e, 0);
    assert_int_equal(rle_incoming_reply(node[w].rpc, in, &e), RLE_OK);
    rle_encoder_fini(&e);
}

/* All that was under way has been read. */
static void check_nothing_in_transit(void)
{
    for (int o = 0; o < WORKERS; o++)
        for (size_t i = 1; i <= node[o].made; i++)
            for (int w = 0; w < WORKERS; w++)
                assert_int_equal(node[o].things[i].transit[w], 0);
}

static void give_back(int w, int owner, uint64_t number)
{
    thing *t = &node[owner].things[number];
    t->held[w]--;
    if (w == owner) {
        rle_export_discard(node[w].rpc, number);
        return;
    }
    rle_peer *peer = rle_rpc_peer(node[w].rpc, name_of(owner));
    rle_ref_discard(node[w].rpc, peer, rle_peer_session(node[w].rpc, peer), number, 1);
}

static void pass_on(int owner, uint64_t number, int to)
{
    if (ticket_count == 64) return;
    ticket *k = &tickets[ticket_count];
    *k = (ticket){.owner = owner, .to = to, .number = number};
    for (int i = 0; i < RLE_TICKET_SIZE; i++) k->bytes[i] = (uint8_t)draw(256);
    assert_int_equal(rle_ticket_grant(node[owner].rpc, number, k->bytes), RLE_OK);
    node[owner].things[number].tickets++;
    ticket_count++;
    passed++;
}

static void claim(int i)
{
    ticket k = tickets[i];
    thing *t = &node[k.owner].things[k.number];
    tickets[i] = tickets[--ticket_count];
    assert_int_equal(rle_ticket_claim(node[k.owner].rpc, k.bytes), k.number);
    assert_int_equal(rle_ticket_claim(node[k.owner].rpc, k.bytes), 0); /* good for once */
    send_ref(k.owner, k.to, k.owner, k.number, RLE_REF_SENDERS);
    t->transit[k.to]++;
    t->tickets--;
    rle_export_unhold(node[k.owner].rpc, k.number);
}

static void kill_worker(int w)
{
    rle_rpc_free(node[w].rpc);
    node[w].made = node[w].live = 0;
    for (int o = 0; o < WORKERS; o++)
        for (size_t i = 1; i <= node[o].made; i++)
            node[o].things[i].held[w] = node[o].things[i].transit[w] = 0;
    for (int i = ticket_count; i-- > 0;)
        if (tickets[i].owner == w) tickets[i] = tickets[--ticket_count];
    for (int n = 0; n < 5; n++)
        for (int o = 0; o < WORKERS; o++)
            if (o != w) rle_rpc_turn(node[o].rpc, false);
    start(w);
    connect_all();
    kills++;
}

/* An object that is alive, among the younger ones of its owner. */
static bool pick(int owner, uint64_t *number)
{
    struct node *o = &node[owner];
    for (int tries = 0; o->live && tries < 8; tries++) {
        uint64_t n = o->made - draw(o->made < 200 ? (uint32_t)o->made : 200);
        if (o->things[n].gone || !anybody(&o->things[n])) continue;
        *number = n;
        return true;
    }
    return false;
}

static void something(void)
{
    int owner = (int)draw(WORKERS), w = (int)draw(WORKERS);
    uint64_t number = 0;
    uint32_t what = draw(16);
    if (what < 4) {
        make(owner);
    } else if (what < 15 && pick(owner, &number)) {
        thing *t = &node[owner].things[number];
        if (what < 7 && w != owner && t->held[owner] && t->transit[w] < 100) {
            send_ref(owner, w, owner, number, RLE_REF_SENDERS);
            t->transit[w]++;
        } else if (what < 9 && w != owner && t->held[w] && t->held[w] < 100) {
            pass_on(owner, number, 3 - owner - w); /* to the third */
        } else if (what < 12 && t->held[w]) {
            give_back(w, owner, number);
        } else if (what == 14 && w != owner && t->held[w]) {
            send_ref(w, owner, owner, number, RLE_REF_RECEIVERS);
        } else if (ticket_count) {
            claim((int)draw((uint32_t)ticket_count));
        }
    } else if (draw(8) == 0) {
        /* Now and then the sockets are looked at; what was given back is late until then. */
        turn_all(1 + (int)draw(3));
        for (int i = 0; i < WORKERS; i++)
            for (int n = (int)draw(40); n; n--) serve(i);
        for (int i = 0; i < WORKERS; i++) look_at_dropped(i);
    }
}

static void drop_everything(void)
{
    while (ticket_count) claim(0);
    for (int round = 0; round < 200; round++) {
        turn_all(2);
        for (int w = 0; w < WORKERS; w++)
            for (int n = 0; n < 1000; n++) serve(w);
    }
    check_nothing_in_transit();
    for (int o = 0; o < WORKERS; o++)
        for (size_t i = 1; i <= node[o].made; i++)
            for (int w = 0; w < WORKERS; w++)
                while (node[o].things[i].held[w]) give_back(w, o, i);
    for (int round = 0; round < 50; round++) {
        turn_all(1);
        for (int o = 0; o < WORKERS; o++) look_at_dropped(o);
    }
}

static void f42_references_made_dropped_and_passed_on_at_random(void **state)
{
    (void)state;
    uint64_t goal = getenv("RLE_FULL") ? 1000000 : 6000;
    size_t fds = open_fds();
    for (int w = 0; w < WORKERS; w++) start(w);
    connect_all();
    turn_all(20);
    size_t bytes = rle_mem_bytes();
    uint64_t often = getenv("RLE_FULL") ? goal / 100 : goal / 8, next_kill = often;
    while (made < goal) {
        something();
        if (made < next_kill) continue;
        next_kill += often;
        /* What is under way is of unknown fate then; it is read first. */
        for (int n = 0; n < 300; n++) {
            turn_all(1);
            for (int w = 0; w < WORKERS; w++)
                for (int k = 0; k < 100; k++) serve(w);
        }
        check_nothing_in_transit();
        for (int w = 0; w < WORKERS; w++) look_at_dropped(w);
        kill_worker((int)draw(WORKERS));
    }
    drop_everything();
    rle_export_info list[8];
    for (int w = 0; w < WORKERS; w++) {
        rle_rpc_counters c;
        rle_rpc_count(node[w].rpc, &c);
        assert_int_equal(node[w].live, 0);
        assert_int_equal(c.exported_objects, 0);
        assert_int_equal(c.live_incoming, 0);
        assert_int_equal(rle_rpc_exports(node[w].rpc, list, 8), 0);
    }
    /* Pools of calls and futures stay, and the output of each connection. */
    assert_true(rle_mem_bytes() < bytes + (512 << 10));
    figure("F42", "%llu references made, %llu passed on, %llu kills: tables empty, %+ld bytes",
           (unsigned long long)made, (unsigned long long)passed, (unsigned long long)kills,
           (long)(rle_mem_bytes() - bytes));
    for (int w = 0; w < WORKERS; w++) {
        rle_rpc_free(node[w].rpc);
        free(node[w].things);
        node[w] = (struct node){0};
    }
    assert_int_equal(open_fds(), fds);
}

/* RELEASE of what was never sent, more than was sent, and again. */
static void a_release_too_many_takes_nothing_from_others(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    raw x = raw_join(a, "x"), y = raw_join(a, "y");
    uint64_t object = rle_export_new_at(a, 0), other = rle_export_new_at(a, 0);
    rle_peer *to[2] = {rle_rpc_peer(a, "x"), rle_rpc_peer(a, "y")};
    for (int i = 0; i < 2; i++) {
        rle_encoder e;
        rle_encoder_init(&e);
        begin_call(&e, "take", 1);
        rle_encode_ref(&e, &(rle_wire_ref){.kind = RLE_REF_SENDERS, .object = object});
        rle_future_release(a, call_with(a, to[i], "take", &e, 0, true));
        rle_encoder_fini(&e);
    }
    rle_export_unhold(a, object);
    rle_export_info list[4];
    assert_int_equal(rle_rpc_exports(a, list, 4), 3); /* x, y; and `other` here */
    uint8_t entries[3 * 12];
    uint64_t objects[3] = {object, other, 4711};
    for (int i = 0; i < 3; i++) {
        rle_put64(entries + 12 * i, objects[i]);
        rle_put32(entries + 12 * i + 8, 1000000);
    }
    for (int i = 0; i < 3; i++) {
        raw_send(&x, (rle_frame){.type = RLE_FRAME_RELEASE}, entries, sizeof entries);
        assert_int_equal(rle_rpc_exports(a, list, 4), 2);
        assert_int_equal(rle_rpc_next_dropped(a), 0);
    }
    raw_send(&y, (rle_frame){.type = RLE_FRAME_RELEASE}, entries, sizeof entries);
    assert_int_equal(rle_rpc_next_dropped(a), object);
    assert_int_equal(rle_rpc_next_dropped(a), 0);
    raw_send(&y, (rle_frame){.type = RLE_FRAME_RELEASE}, entries, sizeof entries); /* late */
    /* What is gone cannot be sent. */
    rle_encoder e;
    rle_wire_error err;
    rle_encoder_init(&e);
    begin_call(&e, "take", 1);
    rle_encode_ref(&e, &(rle_wire_ref){.kind = RLE_REF_SENDERS, .object = object});
    rle_future *f = call_with(a, to[0], "take", &e, 0, true);
    rle_encoder_fini(&e);
    assert_string_equal(error_of(f, &err), "reference 1 was released");
    assert_int_equal(err.code, RLE_NOT_FOUND);
    rle_future_release(a, f);
    raw_close(&x);
    raw_close(&y);
    rle_export_unhold(a, other);
    assert_int_equal(rle_rpc_next_dropped(a), other);
    rle_rpc_free(a);
}

/* A message that cannot be sent takes back what was counted for it: else its object would
 * stay alive for nobody. */
static void what_could_not_be_sent_is_held_by_nobody(void **state)
{
    (void)state;
    int failed = 0;
    for (uint64_t nth = 1; nth < 12; nth++) {
        for (int results = 0; results < 2; results++) {
            pair p = make_pair(NULL, NULL);
            uint64_t object = rle_export_new(p.a);
            rle_incoming_info info;
            rle_decoder d;
            rle_future *asked = results ? call(p.b, p.to_a, "f", 1) : NULL, *f = NULL;
            turn(p.b, p.a);
            rle_incoming *in = results ? rle_rpc_next_call(p.a, &info, &d) : NULL;
            rle_encoder e;
            rle_encoder_init(&e);
            if (results) {
                rle_encoder_reset(&e);
                rle_encode_result_head(&e, 1);
            } else {
                begin_call(&e, "f", 1);
            }
            rle_encode_ref(&e,
                           &(rle_wire_ref){.kind = RLE_REF_SENDERS, .object = object});
            rle_mem_fault(nth, true);
            bool sent;
            if (results) {
                assert_non_null(in);
                sent = rle_incoming_reply(p.a, in, &e) == RLE_OK;
            } else {
                rle_call_spec spec = {.peer = p.to_b, .method = "f"};
                sent = rle_rpc_call(p.a, &spec, &e, &f) == RLE_OK &&
                       rle_future_status(p.a, f) == RLE_FUTURE_PENDING;
            }
            rle_mem_fault(0, false);
            rle_export_info who[4];
            size_t holders = rle_rpc_exports(p.a, who, 4);
            assert_int_equal(holders, sent ? 2 : 1); /* a itself, and b */
            failed += !sent;
            if (results && !sent)
                rle_incoming_fail(p.a, in,
                                  &(rle_wire_error){.code = RLE_RESOURCE_EXHAUSTED});
            rle_encoder_fini(&e);
            if (f) rle_future_release(p.a, f);
            if (asked) rle_future_release(p.b, asked);
            free_pair(&p);
        }
    }
    assert_true(failed > 3);
}

/* Many at once, and none: what held them is given back. */
static void tables_that_were_large_are_freed(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    turn(p.a, p.b);
    enum { MANY = 20000 };
    size_t bytes = rle_mem_bytes(), most;
    uint64_t first = 0, number = 0;
    for (int i = 0; i < MANY; i++) {
        number = rle_export_new_at(p.a, 0);
        if (!first) first = number;
    }
    most = rle_mem_bytes();
    assert_true(most > bytes + MANY * 32);
    for (uint64_t n = first; n <= number; n++) rle_export_discard(p.a, n);
    int gone = 0;
    while (rle_rpc_next_dropped(p.a)) gone++;
    assert_int_equal(gone, MANY);
    turn(p.a, p.b);
    assert_true(rle_mem_bytes() < bytes + (16 << 10));
    free_pair(&p);
}

/* Who was given a reference and is killed on its way to the owner never comes for it. */
static void what_nobody_comes_for_is_let_go_of(void **state)
{
    (void)state;
    rle_clock clock = {shifted, NULL};
    clock_ahead = 0;
    rle_clock_set(&clock);
    rle_rpc *a = worker("a", &(rle_rpc_options){.heartbeat = RLE_SECONDS / 20});
    uint8_t secret[RLE_TICKET_SIZE] = {1};
    uint64_t object = rle_export_new_at(a, 0), dropped_object = 0;
    assert_int_equal(rle_ticket_grant(a, object, secret), RLE_OK);
    rle_export_unhold(a, object);
    for (int i = 0; i < 30; i++) {
        turn(a, NULL);
        usleep(5000);
    }
    assert_int_equal(rle_rpc_next_dropped(a), 0);
    clock_ahead = 61 * RLE_SECONDS;
    for (int i = 0; i < 2000 && !dropped_object; i++) {
        turn(a, NULL);
        usleep(1000);
        dropped_object = rle_rpc_next_dropped(a);
    }
    assert_int_equal(dropped_object, object);
    assert_int_equal(rle_ticket_claim(a, secret), 0);
    rle_rpc_free(a);
    rle_clock_set(NULL);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(f42_references_made_dropped_and_passed_on_at_random),
        TEST(a_release_too_many_takes_nothing_from_others),
        TEST(what_could_not_be_sent_is_held_by_nobody),
        TEST(tables_that_were_large_are_freed),
        TEST(what_nobody_comes_for_is_let_go_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
