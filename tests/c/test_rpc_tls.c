/* test_rpc_tls.c - workers that speak TLS: both ways to prove who one is, what happens
 * with the wrong one, and those who speak no TLS. */
#include "rpc_door.h"

#include <sys/stat.h>

#include "tls_certificates.h"
#include "shifted_clock.h"

static const rle_tls_options psk = {.psk = true, .unix_too = true};

static bool full(void)
{
    return getenv("RLE_FULL") != NULL;
}

/* A worker that listens at a port of its own. */
static rle_rpc *tcp_listener(const rle_rpc_options *o)
{
    rle_rpc *a = worker("a", o);
    assert_int_equal(rle_rpc_listen(a, "tcp://127.0.0.1:0", NULL), RLE_OK);
    return a;
}

static void call_and_answer(rle_rpc *from, rle_rpc *to, rle_peer *peer, int64_t number)
{
    rle_future *f = call(from, peer, "f", number);
    for (int i = 0; i < 5000 && rle_future_status(from, f) == RLE_FUTURE_PENDING; i++) {
        turn(from, to);
        serve_one(to);
    }
    assert_int_equal(rle_future_status(from, f), RLE_FUTURE_DONE);
    assert_int_equal(result_of(f), number + 1);
    rle_future_release(from, f);
}

static void calls_both_ways(rle_rpc *a, rle_rpc *b)
{
    rle_peer *to_a = link_to(b, a), *to_b = rle_rpc_peer(a, "b");
    assert_true(rle_peer_connected(b, to_a));
    assert_true(rle_peer_connected(a, to_b));
    for (int i = 0; i < 50; i++) {
        call_and_answer(a, b, to_b, i);
        call_and_answer(b, a, to_a, -i);
    }
}

/* ---- the key from the token ---- */

static void workers_with_the_same_token_talk(void **state)
{
    (void)state;
    rle_rpc_options o = {.tls = &psk};
    for (int round = 0; round < 3; round++) {
        size_t bytes = rle_mem_bytes(), blocks = rle_mem_blocks(), fds = open_fds();
        rle_rpc *a = tcp_listener(&o), *b = worker("b", &o);
        calls_both_ways(a, b);
        assert_false(a->conns->body_crc);
        assert_string_equal(a->conns->transport.ops->name, "tls");
        rle_rpc_free(a);
        rle_rpc_free(b);
        assert_int_equal(rle_mem_bytes(), bytes);
        assert_int_equal(rle_mem_blocks(), blocks);
        assert_int_equal(open_fds(), fds);
    }
}

/* At a Unix socket only where both ask for it. */
static void unix_sockets_are_plain_unless_asked(void **state)
{
    (void)state;
    rle_tls_options only_tcp = {.psk = true};
    pair p = make_pair(&(rle_rpc_options){.tls = &only_tcp}, NULL);
    assert_string_equal(p.a->conns->transport.ops->name, "socket");
    free_pair(&p);
    rle_rpc_options o = {.tls = &psk};
    p = make_pair(&o, &o);
    assert_string_equal(p.a->conns->transport.ops->name, "tls");
    free_pair(&p);
}

/* Each bit of the token wrong once. */
static void f33_another_token_is_refused(void **state)
{
    (void)state;
    rle_rpc_options o = {.tls = &psk};
    rle_rpc *a = worker("a", &o);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    int step = full() ? 1 : 5, refused = 0;
    for (int bit = 0; bit < (int)test_token.len * 8; bit += step) {
        rle_token other = test_token;
        other.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        snprintf(other.source, sizeof other.source, "~/.config/rlengine/token");
        rle_rpc *b = worker("b", &(rle_rpc_options){.tls = &psk, .token = &other});
        test_log_count = 0;
        assert_false(rle_peer_connected(b, link_to(b, a)));
        assert_true(logged(" refused the token in ~/.config/rlengine/token"));
        assert_true(logged("wrong token ("));
        rle_rpc_free(b);
        refused++;
    }
    rle_rpc_counters c;
    rle_rpc_count(a, &c);
    assert_int_equal(c.refused_peers, refused);
    assert_int_equal(rle_rpc_peers(a, NULL, 0), 0);
    rle_rpc_free(a);
}

/* They are counted as without TLS; but these are of our own user, who is not shut out. */
static void refusals_are_counted(void **state)
{
    (void)state;
    bool told = users_are_told_apart();
    rle_rpc *a = tcp_listener(&(rle_rpc_options){.tls = &psk});
    rle_token other = test_token;
    other.bytes[0] ^= 1;
    for (int i = 0; i < 10; i++) {
        rle_rpc *b = worker("b", &(rle_rpc_options){.tls = &psk, .token = &other});
        link_to(b, a);
        rle_rpc_free(b);
    }
    assert_true(logged("wrong token (10 in the last minute)"));
    rle_rpc *good = worker("good", &(rle_rpc_options){.tls = &psk});
    assert_true(rle_peer_connected(good, link_to(good, a)) == told);
    rle_rpc_free(good);
    rle_rpc_free(a);
}

/* ---- certificates ---- */

static authority ours, foreign, namesake;

static rle_tls_options files_of(const char *name, const char *ca)
{
    static char paths[6][3][160];
    static int next;
    char(*p)[160] = paths[next++ % 6];
    snprintf(p[0], sizeof p[0], "%s/%s.crt", test_folder, name);
    snprintf(p[1], sizeof p[1], "%s/%s.key", test_folder, name);
    snprintf(p[2], sizeof p[2], "%s/%s.crt", test_folder, ca);
    return (rle_tls_options){.cert = p[0], .key = p[1], .ca = p[2]};
}

static int certificates_setup(void **state)
{
    if (pair_setup(state) != 0) return -1;
    char path[160];
    ours = new_authority("ours");
    foreign = new_authority("foreign");
    namesake = new_authority("ours");
    snprintf(path, sizeof path, "%s/ca.crt", test_folder);
    write_certificate(path, ours.cert);
    snprintf(path, sizeof path, "%s/foreign_ca.crt", test_folder);
    write_certificate(path, foreign.cert);
    issue(&ours, test_folder, "a", "IP:127.0.0.1,DNS:localhost", -60, 3600);
    issue(&ours, test_folder, "b", "IP:127.0.0.1", -60, 3600);
    issue(&ours, test_folder, "old", "IP:127.0.0.1", -3600, -60);
    issue(&ours, test_folder, "early", "IP:127.0.0.1", 600, 3600);
    issue(&ours, test_folder, "elsewhere", "IP:10.0.0.5,DNS:trainer.lab", -60, 3600);
    issue(&namesake, test_folder, "namesake", "IP:127.0.0.1", -60, 3600);
    issue(&foreign, test_folder, "foreign", "IP:127.0.0.1", -60, 3600);
    return 0;
}

static int certificates_teardown(void **state)
{
    char command[192];
    free_authority(&ours);
    free_authority(&foreign);
    free_authority(&namesake);
    snprintf(command, sizeof command, "rm -f %s/*.crt %s/*.key", test_folder,
             test_folder);
    if (system(command) != 0) return -1;
    return pair_teardown(state);
}

static void workers_with_certificates_talk(void **state)
{
    (void)state;
    size_t bytes = rle_mem_bytes(), blocks = rle_mem_blocks(), fds = open_fds();
    rle_tls_options fa = files_of("a", "ca"), fb = files_of("b", "ca");
    rle_rpc *a = tcp_listener(&(rle_rpc_options){.tls = &fa});
    rle_rpc *b = worker("b", &(rle_rpc_options){.tls = &fb});
    calls_both_ways(a, b);
    rle_rpc_free(a);
    rle_rpc_free(b);
    assert_int_equal(rle_mem_bytes(), bytes);
    assert_int_equal(rle_mem_blocks(), blocks);
    assert_int_equal(open_fds(), fds);
}

/* `at_a`, `at_b`: what the log has to say at either side; NULL: nothing is asked. */
static void refused(const rle_tls_options *fa, const rle_tls_options *fb,
                    const char *at_a, const char *at_b)
{
    rle_rpc *a = tcp_listener(&(rle_rpc_options){.tls = fa});
    rle_rpc *b = worker("b", &(rle_rpc_options){.tls = fb});
    test_log_count = 0;
    assert_false(rle_peer_connected(b, link_to(b, a)));
    for (int i = 0; i < 100; i++) turn(a, b);
    if (at_a && !logged(at_a)) fail_msg("not said: %s; but: %s", at_a, test_log[0]);
    if (at_b && !logged(at_b)) fail_msg("not said: %s; but: %s", at_b, test_log[0]);
    assert_int_equal(rle_rpc_peers(a, NULL, 0), 0);
    rle_rpc_free(a);
    rle_rpc_free(b);
}

static void certificates_are_looked_at_by_both_sides(void **state)
{
    (void)state;
    rle_tls_options a = files_of("a", "ca"), b = files_of("b", "ca");
    rle_tls_options x = files_of("old", "ca");
    refused(&x, &b, "refused this worker's certificate: it has expired",
            "tls: certificate of \"127.0.0.1\" has expired");
    refused(&a, &x, "\" has expired (1 in the last minute)",
            "tls: 127.0.0.1 refused this worker's certificate: it has expired");
    x = files_of("early", "ca");
    refused(&x, &b, NULL, "tls: certificate of \"127.0.0.1\" is not valid yet");
    refused(&a, &x, "\" is not valid yet", NULL);
    x = files_of("foreign", "foreign_ca");
    refused(&x, &b, "does not know the authority",
            "tls: certificate of \"127.0.0.1\" is not signed by the authority in ");
    x = files_of("foreign", "ca");
    refused(&a, &x, "is not signed by the authority in ",
            "refused this worker's certificate: it does not know the authority");
    x = files_of("namesake", "ca");
    refused(
        &a, &x, "is not signed by the authority in ",
        "refused this worker's certificate: it knows another authority of the same name");
    x = files_of("elsewhere", "ca");
    refused(&x, &b, NULL, "tls: certificate of \"127.0.0.1\" is for another name");
}

static void the_name_to_expect_can_be_given(void **state)
{
    (void)state;
    rle_tls_options there = files_of("elsewhere", "ca"), b = files_of("b", "ca");
    b.name = "trainer.lab";
    rle_rpc *a = tcp_listener(&(rle_rpc_options){.tls = &there});
    rle_rpc *rb = worker("b", &(rle_rpc_options){.tls = &b});
    calls_both_ways(a, rb);
    rle_rpc_free(a);
    rle_rpc_free(rb);
    b.name = "trainer.else";
    refused(&there, &b, NULL, "tls: certificate of \"trainer.else\" is for another name");
}

/* The name of the host as the user wrote it, not the number it stands for. */
static void host_names_are_compared_as_written(void **state)
{
    (void)state;
    rle_address at;
    assert_int_equal(rle_address_parse("tcp://localhost:5", &at), RLE_OK);
    assert_string_equal(at.host, "localhost");
    assert_int_equal(rle_address_parse("[::1]:5", &at), RLE_OK);
    assert_string_equal(at.host, "::1");
    assert_int_equal(rle_address_parse(test_address, &at), RLE_OK);
    assert_string_equal(at.host, "");
}

static void kinds_do_not_mix(void **state)
{
    (void)state;
    rle_tls_options b = files_of("b", "ca");
    refused(&psk, &b, "have no way to prove who they are in common",
            "have no way to prove who they are in common");
    refused(&b, &psk, "does not know the authority that signed it",
            "shows a certificate, this worker has the token");
}

static void files_are_read_strictly(void **state)
{
    (void)state;
    rle_tls *tls;
    char want[300];
    rle_tls_options o = files_of("a", "ca");
    assert_int_equal(chmod(o.key, 0644), 0);
    assert_int_equal(rle_tls_new(&o, &test_token, &tls), RLE_FAILED_PRECONDITION);
    snprintf(want, sizeof want,
             "tls key file %s can be read by others (mode 0644); chmod 600 it", o.key);
    assert_string_equal(rle_message(), want);
    assert_int_equal(chmod(o.key, 0600), 0);
    rle_tls_options other = o;
    other.key = files_of("b", "ca").key;
    assert_int_equal(rle_tls_new(&other, &test_token, &tls), RLE_FAILED_PRECONDITION);
    assert_non_null(strstr(rle_message(), "is not that of the certificate in"));
    other = o;
    other.ca = "/nowhere/ca.crt";
    assert_int_equal(rle_tls_new(&other, &test_token, &tls), RLE_FAILED_PRECONDITION);
    assert_non_null(
        strstr(rle_message(), "tls authority file /nowhere/ca.crt: No such file"));
    other = o;
    other.cert = o.key;
    assert_int_equal(rle_tls_new(&other, &test_token, &tls), RLE_FAILED_PRECONDITION);
    other = o;
    other.ca = NULL;
    assert_int_equal(rle_tls_new(&other, &test_token, &tls), RLE_INVALID_ARGUMENT);
    other = o;
    other.psk = true;
    assert_int_equal(rle_tls_new(&other, &test_token, &tls), RLE_INVALID_ARGUMENT);
    assert_int_equal(rle_tls_new(&o, &test_token, &tls), RLE_OK);
    rle_tls_free(tls);
}

/* ---- peers without TLS, and none at all ---- */

static void plain_and_tls_do_not_meet(void **state)
{
    (void)state;
    refused(&psk, NULL, "it speaks without tls, which is set here; set tls there too",
            "the other side speaks tls, which is not set here");
    refused(NULL, &psk, "the other side speaks tls, which is not set here",
            "it speaks without tls, which is set here; set tls there too");
}

static void strangers_cost_little(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", &(rle_rpc_options){.tls = &psk});
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    size_t bytes = rle_mem_bytes();
    uint8_t payload[4096];
    raw r = raw_connect(a);
    raw_write(&r, "GET / HTTP/1.1\r\n", 16);
    assert_true(logged("not a tls peer (first bytes \"GET \")"));
    raw_close(&r);
    /* A greeting longer than anybody needs: 20 KiB in records that say so. */
    r = raw_connect(a);
    uint8_t record[5 + 16000] = {0x16, 3, 1, 16000 >> 8, 16000 & 255, 1, 0, 0x50, 0};
    raw_write(&r, record, sizeof record);
    raw_write(&r, record, sizeof record);
    assert_true(logged("more than 4096 bytes before the handshake was done"));
    raw_close(&r);
    r = raw_connect(a);
    for (size_t i = 0; i < sizeof payload; i++) payload[i] = (uint8_t)(i * 167 + 13);
    raw_write(&r, payload, sizeof payload);
    raw_close(&r);
    for (int i = 0; i < 3; i++) turn(a, NULL);
    assert_int_equal(rle_mem_bytes(), bytes);
    rle_peer_info none;
    assert_int_equal(rle_rpc_peers(a, &none, 0), 0);
    rle_rpc_free(a);
}

static void a_tls_handshake_takes_5_seconds_at_most(void **state)
{
    (void)state;
    rle_clock c = {shifted, NULL};
    clock_ahead = 0;
    rle_clock_set(&c);
    rle_rpc *a =
        worker("a", &(rle_rpc_options){.heartbeat = RLE_SECONDS / 10, .tls = &psk});
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    raw r = raw_connect(a);
    raw_write(&r, "\x16\x03", 2);
    clock_ahead = 5 * RLE_SECONDS;
    for (int i = 0; i < 40 && !logged("handshake not finished in 5 s"); i++) {
        usleep(30000);
        turn(a, NULL);
    }
    assert_true(logged("handshake not finished in 5 s"));
    raw_close(&r);
    rle_rpc_free(a);
    rle_clock_set(NULL);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)
#define CERTIFIED(f)                                                                     \
    cmocka_unit_test_setup_teardown(f, certificates_setup, certificates_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(workers_with_the_same_token_talk),
        TEST(unix_sockets_are_plain_unless_asked),
        TEST(f33_another_token_is_refused),
        TEST(refusals_are_counted),
        CERTIFIED(workers_with_certificates_talk),
        CERTIFIED(certificates_are_looked_at_by_both_sides),
        CERTIFIED(the_name_to_expect_can_be_given),
        TEST(host_names_are_compared_as_written),
        CERTIFIED(kinds_do_not_mix),
        CERTIFIED(files_are_read_strictly),
        TEST(plain_and_tls_do_not_meet),
        TEST(strangers_cost_little),
        TEST(a_tls_handshake_takes_5_seconds_at_most),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
