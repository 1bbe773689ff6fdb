/* test_rpc_joining.c - a first connection that does not come about at once: what is tried
 * again until connect_timeout, and what is not. The other side runs in threads of its
 * own, because rle_rpc_connect waits. */
#include "rpc_pair.h"

#include <dlfcn.h>
#include <netdb.h>

#include "figure.h"
#include "shifted_clock.h"

/* ---- a door: somebody who accepts where a worker is expected ---- */

typedef struct door {
    pthread_t thread;
    char path[100], address[128], worker[100];
    int times;        /* it does so many connections wrong; then `worker` listens there */
    const char *says; /* first, so many bytes */
    size_t says_size;
    size_t reads;  /* so many bytes are taken before it is closed */
    bool holds;    /* it is not closed, until the next one comes */
    int64_t ahead; /* the clock is moved on then */
    int came;
} door;

static void take(int fd, size_t n)
{
    char drop[256];
    while (n) {
        struct pollfd p = {fd, POLLIN, 0};
        if (poll(&p, 1, 2000) <= 0) return;
        ssize_t got = recv(fd, drop, n < sizeof drop ? n : sizeof drop, 0);
        if (got <= 0) return;
        n -= (size_t)got;
    }
}

static void *keep_door(void *self)
{
    door *d = self;
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    snprintf(un.sun_path, sizeof un.sun_path, "%.99s", d->path);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), held = -1;
    if (bind(listener, (struct sockaddr *)&un, sizeof un) || listen(listener, 8)) abort();
    for (d->came = 0; d->came < d->times;) {
        struct pollfd p = {listener, POLLIN, 0};
        if (poll(&p, 1, 3000) <= 0) break;
        int fd = accept(listener, NULL, NULL);
        d->came++;
        if (d->says_size && send(fd, d->says, d->says_size, MSG_NOSIGNAL) < 0) abort();
        take(fd, d->reads);
        if (held >= 0) close(held);
        held = -1;
        if (d->holds)
            held = fd;
        else
            close(fd);
        if (d->ahead) usleep(50000);
        clock_ahead += d->ahead;
    }
    if (d->worker[0]) rename(d->worker, d->path);
    if (held >= 0) {
        usleep(200000);
        close(held);
    }
    close(listener);
    return NULL;
}

static void open_door(door *d, const rle_rpc *worker_behind)
{
    snprintf(d->path, sizeof d->path, "%.80s/door.sock", test_folder);
    snprintf(d->address, sizeof d->address, "unix:%s", d->path);
    if (worker_behind) snprintf(d->worker, sizeof d->worker, "%.90s", test_address + 5);
    pthread_create(&d->thread, NULL, keep_door, d);
    for (int i = 0; i < 2000 && access(d->path, F_OK) != 0; i++) usleep(1000);
}

static void shut_door(door *d)
{
    pthread_join(d->thread, NULL);
    unlink(d->path);
}

/* A worker whose guard answers. */
static rle_rpc *guarded(const char *name, const rle_rpc_options *more)
{
    rle_rpc_options o = more ? *more : (rle_rpc_options){0};
    o.name = name;
    if (!o.token) o.token = &test_token;
    rle_rpc *rpc = NULL;
    assert_int_equal(rle_rpc_new(&o, &rpc), RLE_OK);
    return rpc;
}

/* ---- what may pass ---- */

static void a_first_handshake_that_is_cut_is_made_again(void **state)
{
    (void)state;
    static const struct {
        size_t reads;
        int times;
    } cuts[] = {{0, 1}, {0, 6}, {1, 1}, {64, 2}, {65, 1}, {140, 2}};
    size_t fds = open_fds(), blocks = rle_mem_blocks();
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        rle_rpc *a = guarded("a", NULL), *b = guarded("b", NULL);
        assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
        door d = {.times = cuts[i].times, .reads = cuts[i].reads};
        open_door(&d, a);
        rle_peer *peer = NULL;
        assert_int_equal(rle_rpc_connect(b, d.address, 20 * RLE_SECONDS, &peer), RLE_OK);
        assert_string_equal(rle_peer_name(peer), "a");
        assert_int_equal(d.came, cuts[i].times);
        rle_rpc_free(b);
        rle_rpc_free(a);
        shut_door(&d);
    }
    assert_int_equal(open_fds(), fds);
    assert_int_equal(rle_mem_blocks(), blocks);
}

/* A trainer that does not come to answer in the 5 s that a handshake may take. */
static void one_that_takes_too_long_is_made_again(void **state)
{
    (void)state;
    rle_clock c = {shifted, NULL};
    clock_ahead = 0;
    rle_clock_set(&c);
    rle_rpc_options often = {.heartbeat = RLE_SECONDS / 10};
    rle_rpc *a = guarded("a", NULL), *b = guarded("b", &often);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    door d = {.times = 1, .holds = true, .ahead = 5 * RLE_SECONDS};
    open_door(&d, a);
    assert_int_equal(rle_rpc_connect(b, d.address, 10 * RLE_SECONDS, NULL), RLE_OK);
    assert_int_equal(d.came, 1);
    rle_rpc_free(b);
    rle_rpc_free(a);
    shut_door(&d);
    rle_clock_set(NULL);
}

static void the_last_reason_is_told_when_time_is_up(void **state)
{
    (void)state;
    char want[256];
    rle_rpc *b = guarded("b", NULL);
    snprintf(want, sizeof want, "no worker at %s for 0.1 s (No such file or directory)",
             test_address);
    assert_int_equal(rle_rpc_connect(b, test_address, RLE_SECONDS / 10, NULL),
                     RLE_UNAVAILABLE);
    assert_string_equal(rle_message(), want);

    door d = {.times = 1000};
    open_door(&d, NULL);
    snprintf(want, sizeof want,
             "no worker at %s for 0.3 s (end of stream in the handshake)", d.address);
    assert_int_equal(rle_rpc_connect(b, d.address, 3 * RLE_SECONDS / 10, NULL),
                     RLE_UNAVAILABLE);
    assert_string_equal(rle_message(), want);
    assert_in_range(d.came, 2, 12); /* and nobody is run against with all one has */
    d.times = 0;
    rle_rpc_connect(b, d.address, 1, NULL);
    shut_door(&d);

    /* Somebody who accepts and says nothing: not longer than was asked for. */
    d = (door){.times = 1, .holds = true, .reads = 1 << 20};
    open_door(&d, NULL);
    int64_t began = rle_now();
    snprintf(want, sizeof want, "no worker at %s for 0.6 s (handshake not finished in 0.",
             d.address);
    assert_int_equal(rle_rpc_connect(b, d.address, 6 * RLE_SECONDS / 10, NULL),
                     RLE_UNAVAILABLE);
    assert_memory_equal(rle_message(), want, strlen(want));
    assert_true(rle_now() - began < 4 * RLE_SECONDS);
    rle_rpc_free(b);
    shut_door(&d);
    assert_int_equal(test_log_count, 0);
}

/* ---- what will not ---- */

static void what_is_no_worker_is_told_at_once(void **state)
{
    (void)state;
    static const struct {
        const char *says;
        size_t size;
        const char *want;
    } strangers[] = {
        {"HTTP/1.1 400 Bad Request\r\n\r\n", 28,
         "not an rlengine peer (first bytes \"HTTP\")"},
        {"\x15\x03\x03\x00\x02\x02\x46", 7,
         "the other side speaks tls, which is not set here; "
         "set tls here too"},
        {"SSH-2.0-OpenSSH\r\n", 17, "not an rlengine peer (first bytes \"SSH-\")"}};
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++) {
        char want[256];
        rle_rpc *b = guarded("b", NULL);
        door d = {.times = 1,
                  .says = strangers[i].says,
                  .says_size = strangers[i].size,
                  .reads = 64};
        open_door(&d, NULL);
        int64_t began = rle_now();
        assert_int_equal(rle_rpc_connect(b, d.address, 30 * RLE_SECONDS, NULL),
                         RLE_FAILED_PRECONDITION);
        assert_true(rle_now() - began < 10 * RLE_SECONDS);
        snprintf(want, sizeof want, "connection to %s: %s", d.address, strangers[i].want);
        assert_string_equal(rle_message(), want);
        assert_int_equal(test_log_count, 0); /* said once, by the error */
        rle_rpc_free(b);
        shut_door(&d);
    }
}

static void expect_refusal(rle_rpc *b, rle_status code, const char *want)
{
    int64_t began = rle_now();
    assert_int_equal(rle_rpc_connect(b, test_address, 30 * RLE_SECONDS, NULL), code);
    assert_true(rle_now() - began < 10 * RLE_SECONDS);
    assert_string_equal(rle_message(), want);
    rle_rpc_free(b);
}

static void a_refusal_is_told_at_once(void **state)
{
    (void)state;
    char want[128];
    rle_rpc *a = guarded("a", NULL), *first = guarded("b", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    assert_int_equal(rle_rpc_connect(first, test_address, RLE_SECONDS, NULL), RLE_OK);
    rle_token other = test_token;
    other.bytes[3] ^= 1;
    expect_refusal(guarded("x", &(rle_rpc_options){.token = &other}), RLE_UNAUTHENTICATED,
                   "\"a\" refused the token in a test");
    expect_refusal(guarded("x", &(rle_rpc_options){.min_version = 3, .max_version = 3}),
                   RLE_UNIMPLEMENTED, "\"x\" speaks protocol 3, \"a\" speaks 1");
    snprintf(want, sizeof want,
             "\"b\" is already connected from pid %d; pick another name", (int)getpid());
    expect_refusal(guarded("b", NULL), RLE_ALREADY_EXISTS, want);
    rle_rpc_free(first);
    rle_rpc_free(a);
}

/* ---- several addresses ---- */

/* A host of two addresses, at the first of which nobody listens. */
int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                struct addrinfo **out)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (strcmp(host, "two.test") != 0 || hints->ai_flags & AI_NUMERICHOST)
        return real(host, service, hints, out);
    struct addrinfo *second = NULL;
    if (real("127.0.0.1", service, hints, &second) ||
        real("127.0.0.2", service, hints, out))
        return EAI_FAIL;
    (*out)->ai_next = second;
    return 0;
}

static void each_address_of_a_name_is_tried(void **state)
{
    (void)state;
    char bound[RLE_ADDRESS_MAX], name[64];
    rle_rpc *a = guarded("a", NULL), *b = guarded("b", NULL);
    assert_int_equal(rle_rpc_listen(a, "tcp://127.0.0.1:0", bound), RLE_OK);
    snprintf(name, sizeof name, "tcp://two.test%s", strrchr(bound, ':'));
    assert_int_equal(rle_rpc_connect(b, name, 10 * RLE_SECONDS, NULL), RLE_OK);
    rle_rpc_free(b);
    rle_rpc_free(a);
}

/* Of a worker that others have told of: when nobody answers at one, the next is tried. */
static void each_address_of_a_worker_is_tried(void **state)
{
    (void)state;
    size_t fds = open_fds();
    rle_rpc *a = guarded("a", NULL), *b = worker("b", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    door d = {.times = 1};
    open_door(&d, NULL);
    rle_peer *to_a = rle_rpc_peer(b, "a");
    rle_peer_hint(b, to_a,
                  (const char *const[]){d.address, "tcp://nowhere:1", test_address}, 3);
    rle_future *f = call(b, to_a, "f", 1);
    for (int i = 0; i < 3000 && !rle_peer_connected(b, to_a); i++) {
        turn(b, NULL);
        usleep(1000);
    }
    assert_true(rle_peer_connected(b, to_a));
    assert_int_equal(d.came, 1);
    for (int i = 0; i < 3000 && rle_future_status(b, f) == RLE_FUTURE_PENDING; i++) {
        turn(a, b);
        serve_one(a);
        usleep(100);
    }
    assert_int_equal(result_of(f), 2);
    rle_future_release(b, f);
    rle_rpc_free(b);
    rle_rpc_free(a);
    shut_door(&d);
    assert_int_equal(open_fds(), fds);
}

/* Connections that a worker makes itself are no strangers: it goes on accepting. */
static void ones_own_attempts_do_not_close_the_door(void **state)
{
    (void)state;
    enum { MANY = RLE_PREAUTH_CONNECTIONS + 10 };
    char silent[RLE_ADDRESS_MAX];
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    snprintf(un.sun_path, sizeof un.sun_path, "%.80s/silent.sock", test_folder);
    snprintf(silent, sizeof silent, "unix:%s", un.sun_path);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&un, sizeof un), 0);
    assert_int_equal(listen(listener, 2 * MANY), 0);
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    rle_rpc_enter(a);
    for (int i = 0; i < MANY; i++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", i);
        rle_peer *peer = rle_peer_get(a, name);
        rle_peer_listens(peer, &silent, 1);
        rle_peer_open(peer);
        assert_non_null(peer->opening);
    }
    rle_rpc_leave(a);
    raw r = raw_join(a, "y");
    raw_close(&r);
    rle_rpc_free(a);
    close(listener);
    unlink(un.sun_path);
}

/* ---- both at once ---- */

typedef struct side {
    pthread_t thread;
    rle_rpc *rpc;
    const char *other;
    pthread_barrier_t *start;
    rle_status status;
    rle_peer *peer;
    char message[256];
} side;

static void *connect_side(void *self)
{
    side *s = self;
    pthread_barrier_wait(s->start);
    s->status = rle_rpc_connect(s->rpc, s->other, 20 * RLE_SECONDS, &s->peer);
    snprintf(s->message, sizeof s->message, "%s", s->status ? rle_message() : "");
    /* Somebody has to run the loop; the guard would do so later. */
    for (int i = 0; i < 20; i++) {
        rle_rpc_turn(s->rpc, false);
        usleep(500);
    }
    return NULL;
}

/* Two that connect to each other in the same moment end with one connection between them.
 */
static void two_that_connect_to_each_other_both_succeed(void **state)
{
    (void)state;
    size_t fds = open_fds(), blocks = rle_mem_blocks();
    int rounds = getenv("RLE_FULL") ? 2000 : 60;
    for (int round = 0; round < rounds; round++) {
        static const char *const names[] = {"a", "b"};
        char address[2][128];
        pthread_barrier_t start;
        pthread_barrier_init(&start, NULL, 2);
        side sides[2];
        for (int i = 0; i < 2; i++) {
            snprintf(address[i], sizeof address[i], "unix:%.80s/%s.sock", test_folder,
                     names[i]);
            sides[i] = (side){.rpc = guarded(names[i], NULL), .start = &start};
            assert_int_equal(rle_rpc_listen(sides[i].rpc, address[i], NULL), RLE_OK);
        }
        for (int i = 0; i < 2; i++) {
            sides[i].other = address[1 - i];
            pthread_create(&sides[i].thread, NULL, connect_side, &sides[i]);
        }
        for (int i = 0; i < 2; i++) pthread_join(sides[i].thread, NULL);
        for (int i = 0; i < 2; i++) {
            if (sides[i].status) fail_msg("round %d: %s", round, sides[i].message);
            assert_string_equal(rle_peer_name(sides[i].peer), names[1 - i]);
        }
        for (int i = 0; i < 200 && !(rle_peer_connected(sides[0].rpc, sides[0].peer) &&
                                     rle_peer_connected(sides[1].rpc, sides[1].peer));
             i++) {
            turn(sides[0].rpc, sides[1].rpc);
            usleep(1000);
        }
        rle_future *f = call(sides[0].rpc, sides[0].peer, "f", 1);
        for (int i = 0;
             i < 500 && rle_future_status(sides[0].rpc, f) == RLE_FUTURE_PENDING; i++) {
            turn(sides[0].rpc, sides[1].rpc);
            serve_one(sides[1].rpc);
        }
        assert_int_equal(result_of(f), 2);
        rle_future_release(sides[0].rpc, f);
        for (int i = 0; i < 2; i++) {
            size_t conns = 0;
            rle_rpc_enter(sides[i].rpc);
            for (rle_conn *c = sides[i].rpc->conns; c; c = c->next) conns++;
            assert_int_equal(sides[i].rpc->half_open, 0);
            rle_rpc_leave(sides[i].rpc);
            assert_int_equal(conns, 1);
        }
        /* Or the guard of one might log that the other is gone. */
        for (int i = 0; i < 2; i++) rle_rpc_stop(sides[i].rpc);
        for (int i = 0; i < 2; i++) rle_rpc_free(sides[i].rpc);
        pthread_barrier_destroy(&start);
    }
    if (test_log_count) fail_msg("%d lines, the first: %s", test_log_count, test_log[0]);
    assert_int_equal(open_fds(), fds);
    assert_int_equal(rle_mem_blocks(), blocks);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_first_handshake_that_is_cut_is_made_again),
        TEST(one_that_takes_too_long_is_made_again),
        TEST(the_last_reason_is_told_when_time_is_up),
        TEST(what_is_no_worker_is_told_at_once),
        TEST(a_refusal_is_told_at_once),
        TEST(each_address_of_a_name_is_tried),
        TEST(each_address_of_a_worker_is_tried),
        TEST(ones_own_attempts_do_not_close_the_door),
        TEST(two_that_connect_to_each_other_both_succeed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
