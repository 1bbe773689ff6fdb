/* test_rpc_names.c - names of hosts that do not resolve yet, never, slowly, or to
 * something else a moment later. The resolver is ours. */
#include "rpc_link.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>

#include "base/context.h"
#include "figure.h"

/* ---- a resolver ---- */

/* What *.test leads to, and bad.cafe, whose letters might be of a number. */
static const char *_Atomic leads_to;
static _Atomic int fails; /* so often; then it resolves */
static _Atomic int fails_with;
static _Atomic bool held; /* no answer until it is let go */
static _Atomic int asked;

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                struct addrinfo **out)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    bool ours = strstr(host, ".test") || strstr(host, "bad.cafe");
    if (!ours || hints->ai_flags & AI_NUMERICHOST)
        return real(host, service, hints, out);
    asked++;
    while (held) usleep(1000);
    if (fails > 0) {
        fails--;
        return fails_with;
    }
    return real(leads_to, service, hints, out);
}

static int names_setup(void **state)
{
    leads_to = "127.0.0.1";
    fails = asked = 0;
    held = false;
    return pair_setup(state);
}

/* A worker whose guard answers, at `at`. */
static rle_rpc *guarded(const char *name, const char *at, char *bound)
{
    rle_rpc_options o = {.name = name, .token = &test_token};
    rle_rpc *rpc = NULL;
    assert_int_equal(rle_rpc_new(&o, &rpc), RLE_OK);
    if (at) assert_int_equal(rle_rpc_listen(rpc, at, bound), RLE_OK);
    return rpc;
}

static void name_of(const char *bound, char out[64])
{
    snprintf(out, 64, "tcp://trainer.test%s", strrchr(bound, ':'));
}

static double seconds_since(int64_t began)
{
    return (double)(rle_now() - began) / RLE_SECONDS;
}

/* ---- joining ---- */

static void a_name_that_does_not_resolve_yet_is_waited_for(void **state)
{
    (void)state;
    static const struct {
        int why;
        const char *text;
    } ways[] = {{EAI_NONAME, "Name or service not known"},
                {EAI_AGAIN, "Temporary failure in name resolution"},
                {EAI_FAIL, "Non-recoverable failure in name resolution"},
                {EAI_NODATA, "No address associated with hostname"}};
    size_t fds = open_fds(), blocks = rle_mem_blocks();
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char bound[RLE_ADDRESS_MAX], name[64], want[128];
        rle_rpc *a = guarded("a", "tcp://127.0.0.1:0", bound),
                *b = guarded("b", NULL, NULL);
        name_of(bound, name);
        fails = 3;
        fails_with = ways[i].why;
        int64_t began = rle_now();
        assert_int_equal(rle_rpc_connect(b, name, 20 * RLE_SECONDS, NULL), RLE_OK);
        figure("F08", "a name that resolves at the fourth time: joined after %.2f s",
               seconds_since(began));
        assert_int_equal(fails, 0);
        /* Said once, and at once. */
        snprintf(
            want, sizeof want,
            "the name \"trainer.test\" does not resolve (%s); trying again for 20.0 s",
            ways[i].text);
        assert_int_equal(times_logged(want), 1);
        assert_int_equal(times_logged("resolve"), i + 1);
        rle_rpc_free(b);
        rle_rpc_free(a);
    }
    assert_int_equal(rle_mem_blocks(), blocks);
    assert_int_equal(open_fds(), fds);
}

static void a_misspelt_name_fails_in_time(void **state)
{
    (void)state;
    rle_rpc *b = guarded("b", NULL, NULL);
    fails = INT32_MAX;
    fails_with = EAI_NONAME;
    int64_t began = rle_now();
    assert_int_equal(rle_rpc_connect(b, "trainr.test:29500", 3 * RLE_SECONDS / 2, NULL),
                     RLE_UNAVAILABLE);
    double took = seconds_since(began);
    figure("F09", "a name that never resolves: given up after %.2f s (1.5 s asked)",
           took);
    assert_true(took > 1.4 && took < 60);
    assert_string_equal(
        rle_message(),
        "no worker at trainr.test:29500 for 1.5 s: the name \"trainr.test\" "
        "does not resolve (Name or service not known); check how it is "
        "spelt, /etc/hosts and the name server");
    assert_true(asked >= 2);
    assert_int_equal(times_logged("trying again for 1.5 s"), 1);
    assert_int_equal(test_log_count, 1);
    rle_rpc_free(b);
}

/* What was meant as a number is none that may appear later. */
static void a_bad_number_fails_at_once(void **state)
{
    (void)state;
    static const char *const bad[] = {"256.0.0.1:5", "1.2.3.4.5:5", "[::12345]:5"};
    rle_rpc *b = guarded("b", NULL, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t began = rle_now();
        assert_int_equal(rle_rpc_connect(b, bad[i], 60 * RLE_SECONDS, NULL),
                         RLE_INVALID_ARGUMENT);
        assert_true(seconds_since(began) < 30);
        assert_non_null(strstr(rle_message(), "unknown host"));
    }
    assert_int_equal(test_log_count, 0);
    rle_rpc_free(b);
}

/* Whoever still looked has ended. */
static void all_gone(size_t blocks, size_t fds)
{
    for (int i = 0; i < 5000 && (rle_mem_blocks() != blocks || open_fds() != fds); i++)
        usleep(1000);
    assert_int_equal(rle_mem_blocks(), blocks);
    assert_int_equal(open_fds(), fds);
}

/* The name server is away: the time is kept all the same, and what is left behind goes
 * when it comes back. */
static void a_silent_name_server_holds_nobody_up(void **state)
{
    (void)state;
    size_t fds = open_fds(), blocks = rle_mem_blocks();
    rle_rpc *b = guarded("b", NULL, NULL);
    held = true;
    int64_t began = rle_now();
    assert_int_equal(rle_rpc_connect(b, "trainer.test:1", 3 * RLE_SECONDS / 2, NULL),
                     RLE_UNAVAILABLE);
    double took = seconds_since(began);
    figure("F09", "a silent name server: given up after %.2f s (1.5 s asked)", took);
    assert_true(took < 60);
    assert_string_equal(
        rle_message(),
        "no worker at trainer.test:1 for 1.5 s: the name \"trainer.test\" does "
        "not resolve (no answer from the name server); check how it is spelt, "
        "/etc/hosts and the name server");
    rle_rpc_free(b);
    held = false;
    all_gone(blocks, fds);
}

static void waiting_for_a_name_can_be_interrupted(void **state)
{
    (void)state;
    size_t fds = open_fds(), blocks = rle_mem_blocks();
    rle_rpc *b = guarded("b", NULL, NULL);
    fails = INT32_MAX;
    fails_with = EAI_AGAIN;
    rle_interrupted = 1;
    assert_int_equal(rle_rpc_connect(b, "trainer.test:1", 60 * RLE_SECONDS, NULL),
                     RLE_CANCELLED);
    rle_interrupted = 0;
    rle_rpc_free(b);
    all_gone(blocks, fds);
}

/* What another worker says of where somebody listens makes nobody wait. */
static void names_from_others_are_not_looked_up(void **state)
{
    (void)state;
    rle_rpc *b = worker("b", NULL);
    static const char *const bad[] = {"tcp://bad.cafe:1", "tcp://[bad.cafe:x]:1",
                                      "tcp://trainer.test:1"};
    rle_peer *to_a = rle_rpc_peer(b, "a");
    rle_peer_hint(b, to_a, bad, 3);
    rle_rpc_enter(b);
    rle_peer_open(to_a);
    rle_rpc_leave(b);
    assert_null(to_a->opening);
    assert_int_equal(asked, 0);
    rle_rpc_free(b);
}

/* ---- coming back ---- */

static bool until_incarnation(rle_rpc *b, rle_peer *to_a, uint64_t want)
{
    for (int i = 0; i < 10000 && rle_peer_incarnation(b, to_a) != want; i++) usleep(1000);
    return rle_peer_incarnation(b, to_a) == want;
}

/* Over another connection: of this thread it is not certain that it sees the loss. */
static bool until_back(rle_rpc *b, rle_peer *to_a, uint64_t session)
{
    uint64_t now = session;
    for (int i = 0; i < 10000 && (now == session || now == 0); i++) {
        usleep(1000);
        now = rle_peer_session(b, to_a);
    }
    return now != session && now != 0;
}

static void cut_from(rle_rpc *a)
{
    /* Who accepted may see the joining a little later. */
    rle_peer *to_b = rle_rpc_peer(a, "b");
    for (int i = 0; i < 5000 && !rle_peer_connected(a, to_b); i++) usleep(1000);
    assert_true(rle_peer_connected(a, to_b));
    cut(a, to_b);
}

/* It is started again, and the name leads to its new address. */
static void a_lost_worker_is_looked_for_where_its_name_leads(void **state)
{
    (void)state;
    size_t fds = open_fds(), blocks = rle_mem_blocks();
    char bound[RLE_ADDRESS_MAX], other[64], name[64];
    rle_rpc *old = guarded("a", "tcp://127.0.0.1:0", bound),
            *b = guarded("b", NULL, NULL);
    snprintf(other, sizeof other, "tcp://127.0.0.2%s", strrchr(bound, ':'));
    rle_rpc *next = guarded("a", other, NULL);
    rle_peer *to_a;
    name_of(bound, name);
    assert_int_equal(rle_rpc_connect(b, name, 20 * RLE_SECONDS, &to_a), RLE_OK);
    assert_int_equal(rle_peer_incarnation(b, to_a), old->incarnation);
    leads_to = "127.0.0.2";
    cut_from(old);
    assert_true(until_incarnation(b, to_a, next->incarnation));

    /* While the name does not resolve, it may be where it was. */
    fails = INT32_MAX;
    fails_with = EAI_AGAIN;
    int before = asked;
    uint64_t session = rle_peer_session(b, to_a);
    cut_from(next);
    assert_true(until_back(b, to_a, session));
    assert_true(asked > before);

    /* Or while nobody says to where. */
    held = true;
    int64_t began = rle_now();
    session = rle_peer_session(b, to_a);
    cut_from(next);
    assert_true(until_back(b, to_a, session));
    figure("F08", "reconnected %.2f s after the loss, while the name server is silent",
           seconds_since(began));
    held = false;
    assert_int_equal(times_logged("reconnected to \"a\""), 3);
    rle_rpc_free(b);
    rle_rpc_free(next);
    rle_rpc_free(old);
    all_gone(blocks, fds);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, names_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_name_that_does_not_resolve_yet_is_waited_for),
        TEST(a_misspelt_name_fails_in_time),
        TEST(a_bad_number_fails_at_once),
        TEST(a_silent_name_server_holds_nobody_up),
        TEST(names_from_others_are_not_looked_up),
        TEST(waiting_for_a_name_can_be_interrupted),
        TEST(a_lost_worker_is_looked_for_where_its_name_leads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
