/* test_rpc_handshake.c - who may join: tokens, names, versions, limits before the handshake. */
#include "rpc_pair.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include "base/context.h"
#include "figure.h"
#include "shifted_clock.h"

static void both_sides_learn_each_other(void **state)
{
    (void)state;
    size_t bytes = rle_mem_bytes(), blocks = rle_mem_blocks(), fds = open_fds();
    pair p = make_pair(NULL, NULL);
    assert_string_equal(rle_peer_name(p.to_a), "a");
    assert_true(rle_peer_incarnation(p.b, p.to_a) == rle_rpc_incarnation(p.a));
    char list[RLE_REF_ADDRESSES][RLE_ADDRESS_MAX];
    assert_int_equal(rle_peer_addresses(p.b, p.to_a, list), 1);
    assert_string_equal(list[0], test_address);
    rle_peer_info info;
    assert_int_equal(rle_rpc_peers(p.a, &info, 1), 1);
    assert_int_equal(info.pid, getpid());
    free_pair(&p);
    assert_int_equal(rle_mem_bytes(), bytes);
    assert_int_equal(rle_mem_blocks(), blocks);
    assert_int_equal(open_fds(), fds);
}

static void every_flipped_bit_of_a_proof_is_refused(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    for (int bit = 0; bit < RLE_PROOF_SIZE * 8; bit++) {
        raw r = raw_connect(a);
        rle_frame f;
        uint8_t payload[4096];
        raw_hello_and_auth(&r, "x", bit);
        assert_int_equal(raw_read(&r, &f, payload, sizeof payload), 1);
        assert_int_equal(f.type, RLE_FRAME_ERROR);
        assert_int_equal(f.code, RLE_UNAUTHENTICATED);
        assert_int_equal(raw_read(&r, &f, payload, sizeof payload), 0);
        raw_close(&r);
    }
    assert_true(logged("wrong token ("));
    assert_int_equal(rle_rpc_peers(a, NULL, 0), 0);
    rle_rpc_counters c;
    rle_rpc_count(a, &c);
    assert_int_equal(c.refused_peers, RLE_PROOF_SIZE * 8);
    rle_rpc_free(a);
}

static void a_recorded_handshake_is_of_no_use(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    rle_writer hello;
    rle_writer_init(&hello);
    raw first = raw_connect(a);
    raw_greeting(&hello, &first, "x", 1, 1);
    raw_send(&first, (rle_frame){.type = RLE_FRAME_HELLO}, hello.data, hello.len);
    rle_frame f;
    uint8_t ack[4096], proof[RLE_PROOF_SIZE];
    assert_int_equal(raw_read(&first, &f, ack, sizeof ack), 1);
    rle_auth_proof(&test_token, 'c', hello.data, hello.len, ack, f.payload, proof);
    raw_send(&first, (rle_frame){.type = RLE_FRAME_AUTH, .credit = 1}, proof, sizeof proof);
    assert_int_equal(raw_read(&first, &f, ack, sizeof ack), 1);
    assert_int_equal(f.type, RLE_FRAME_AUTH);
    raw_close(&first);

    raw again = raw_connect(a);
    raw_send(&again, (rle_frame){.type = RLE_FRAME_HELLO}, hello.data, hello.len);
    assert_int_equal(raw_read(&again, &f, ack, sizeof ack), 1);
    raw_send(&again, (rle_frame){.type = RLE_FRAME_AUTH, .credit = 1}, proof, sizeof proof);
    assert_int_equal(raw_read(&again, &f, ack, sizeof ack), 1);
    assert_int_equal(f.type, RLE_FRAME_ERROR);
    assert_int_equal(f.code, RLE_UNAUTHENTICATED);
    raw_close(&again);
    rle_writer_fini(&hello);
    rle_rpc_free(a);
}

/* The future of a call is where the connecting side learns why it was refused. */
static void the_refused_side_is_told_which_token(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    rle_token other = test_token;
    other.bytes[3] ^= 1;
    snprintf(other.source, sizeof other.source, "~/.config/rlengine/token");
    rle_rpc *b = worker("b", &(rle_rpc_options){.token = &other});
    link_to(b, a);
    assert_true(logged("\"a\" refused the token in ~/.config/rlengine/token"));
    rle_rpc_free(b);
    rle_rpc_free(a);
}

static void a_name_is_taken_once(void **state)
{
    (void)state;
    pair p = make_pair(NULL, NULL);
    rle_rpc *second = worker("b", NULL);
    link_to(second, p.a);
    char want[128];
    snprintf(want, sizeof want, "\"b\" is already connected from pid %d; pick another name",
             (int)getpid());
    for (int i = 0; i < 200 && !logged(want); i++) {
        turn(p.a, p.b); /* b is asked whether it lives */
        turn(second, NULL);
    }
    assert_true(logged(want));
    assert_true(rle_peer_connected(p.a, p.to_b)); /* the first is undisturbed */
    rle_future *f = call(p.a, p.to_b, "f", 1);
    for (int i = 0; i < 50; i++) {
        turn(p.a, p.b);
        serve_one(p.b);
    }
    assert_int_equal(result_of(f), 2);
    rle_future_release(p.a, f);
    rle_rpc_free(second);
    rle_rpc *same = worker("a", NULL);
    link_to(same, p.a); /* one's own name */
    rle_rpc_free(same);
    free_pair(&p);
}

static void f32_versions_without_overlap_are_named_on_both_sides(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", &(rle_rpc_options){.min_version = 1, .max_version = 2});
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    raw r = raw_connect(a);
    rle_writer w;
    rle_writer_init(&w);
    raw_greeting(&w, &r, "obs_3", 3, 3);
    int64_t began = rle_now();
    raw_send(&r, (rle_frame){.type = RLE_FRAME_HELLO}, w.data, w.len);
    rle_writer_fini(&w);
    /* What follows is not looked at: one answer, then the end. */
    raw_send(&r, (rle_frame){.type = RLE_FRAME_HELLO}, "again", 5);
    rle_frame f;
    uint8_t payload[4096];
    assert_int_equal(raw_read(&r, &f, payload, sizeof payload), 1);
    figure("F32", "refused after %.2f ms", (double)(rle_now() - began) / 1e6);
    assert_int_equal(f.code, RLE_UNIMPLEMENTED);
    rle_msg m = {.data = payload, .size = f.payload, .values = f.payload};
    rle_wire_error e;
    assert_int_equal(rle_error_decode(&m, &e), RLE_OK);
    static const char text[] = "\"obs_3\" speaks protocol 3, \"a\" speaks 1 to 2";
    assert_int_equal(e.message.n, sizeof text - 1);
    assert_memory_equal(e.message.p, text, sizeof text - 1);
    assert_true(logged(text));
    assert_int_equal(raw_read(&r, &f, payload, sizeof payload), 0);
    raw_close(&r);

    rle_rpc *b = worker("b", &(rle_rpc_options){.min_version = 3, .max_version = 4});
    link_to(b, a);
    int said = 0;
    for (int i = 0; i < test_log_count; i++)
        said += strstr(test_log[i],
                       "\"b\" speaks protocol 3 to 4, \"a\" speaks 1 to 2") != NULL;
    assert_int_equal(said, 2); /* once at each side */
    rle_rpc_free(b);
    rle_rpc_free(a);
}

static void strangers_get_nothing_and_cost_little(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    size_t bytes = rle_mem_bytes();
    rle_frame f;
    uint8_t payload[4096];

    raw r = raw_connect(a);
    raw_write(&r, "GET / HTTP/1.1\r\n", 16);
    assert_int_equal(raw_read(&r, &f, payload, sizeof payload), 0);
    assert_true(logged("not an rlengine peer (first bytes \"GET \")"));
    raw_close(&r);

    /* Calls, pings and unknown types before the handshake. */
    static const uint8_t types[] = {RLE_FRAME_CALL, RLE_FRAME_RESULT, RLE_FRAME_PING,
                                    RLE_FRAME_CHUNK, RLE_FRAME_RELEASE, RLE_FRAME_HELLO_ACK,
                                    RLE_FRAME_AUTH, 0, 99};
    for (size_t i = 0; i < sizeof types; i++) {
        r = raw_connect(a);
        raw_send(&r, (rle_frame){.type = types[i], .id = 1, .arg = 1}, "abcd", 4);
        assert_int_equal(raw_read(&r, &f, payload, sizeof payload), 0);
        raw_close(&r);
    }
    /* A greeting of 5,000 bytes. */
    r = raw_connect(a);
    uint8_t head[RLE_FRAME_HEADER];
    rle_frame big = {.type = RLE_FRAME_HELLO, .payload = 5000, .values = 5000, .body = 5000};
    rle_frame_encode(&big, head);
    raw_write(&r, head, sizeof head);
    assert_int_equal(raw_read(&r, &f, payload, sizeof payload), 0);
    raw_close(&r);
    for (int i = 0; i < 3; i++) turn(a, NULL);
    assert_int_equal(rle_mem_bytes(), bytes);

    /* At most 64 connections that have not proved anything. */
    raw many[RLE_PREAUTH_CONNECTIONS + 3];
    for (int i = 0; i < RLE_PREAUTH_CONNECTIONS + 3; i++) many[i] = raw_connect(a);
    for (int i = 0; i < 10; i++) turn(a, NULL);
    assert_true(rle_mem_bytes() - bytes <= RLE_PREAUTH_CONNECTIONS * 8192);
    rle_peer_info none;
    assert_int_equal(rle_rpc_peers(a, &none, 0), 0);
    assert_int_equal(a->half_open, RLE_PREAUTH_CONNECTIONS);
    /* The other three wait until there is room; nobody is turned away. */
    for (int i = 0; i < RLE_PREAUTH_CONNECTIONS / 2; i++) raw_close(&many[i]);
    for (int i = 0; i < 10; i++) turn(a, NULL);
    assert_int_equal(a->half_open, RLE_PREAUTH_CONNECTIONS / 2 + 3);
    for (int i = RLE_PREAUTH_CONNECTIONS / 2; i < RLE_PREAUTH_CONNECTIONS + 3; i++)
        raw_close(&many[i]);
    for (int i = 0; i < 10; i++) turn(a, NULL);
    assert_int_equal(rle_mem_bytes(), bytes);
    rle_rpc_free(a);
}

static void a_handshake_takes_5_seconds_at_most(void **state)
{
    (void)state;
    rle_clock c = {shifted, NULL};
    clock_ahead = 0;
    rle_clock_set(&c);
    /* A short heartbeat, so that timers are looked at often. */
    rle_rpc *a = worker("a", &(rle_rpc_options){.heartbeat = RLE_SECONDS / 10});
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    raw r = raw_connect(a);
    raw_write(&r, "RLE1", 4);
    clock_ahead = 5 * RLE_SECONDS;
    rle_frame f;
    uint8_t payload[64];
    for (int i = 0; i < 40 && !logged("handshake not finished in 5 s"); i++) {
        usleep(30000);
        turn(a, NULL);
    }
    assert_true(logged("handshake not finished in 5 s"));
    assert_int_equal(raw_read(&r, &f, payload, sizeof payload), 0);
    raw_close(&r);
    rle_rpc_free(a);
    rle_clock_set(NULL);
}

/* ---- tokens ---- */

static void write_file(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    fchmod(fd, mode);
    close(fd);
}

static void interrupt(int number)
{
    (void)number;
    rle_interrupted = 1;
}

static void token_files_are_read_strictly(void **state)
{
    (void)state;
    char path[128], want[256];
    rle_token t;
    snprintf(path, sizeof path, "%s/token", test_folder);
    assert_int_equal(rle_token_from_file(path, &t), RLE_UNAUTHENTICATED);
    write_file(path, "0123456789abcdef0123456789abcdef\n", 0644);
    assert_int_equal(rle_token_from_file(path, &t), RLE_UNAUTHENTICATED);
    snprintf(want, sizeof want, "token file %s can be read by others (mode 0644); chmod 600 it",
             path);
    assert_string_equal(rle_message(), want);
    write_file(path, "", 0600);
    assert_int_equal(rle_token_from_file(path, &t), RLE_UNAUTHENTICATED);
    assert_non_null(strstr(rle_message(), "is empty"));
    write_file(path, "0123456789abcdef0123456789abcde\n", 0600);
    assert_int_equal(rle_token_from_file(path, &t), RLE_UNAUTHENTICATED);
    assert_non_null(strstr(rle_message(), "has 31 bytes"));
    write_file(path, "0123456789abcdef0123456789abcdef\n", 0600);
    assert_int_equal(rle_token_from_file(path, &t), RLE_OK);
    assert_int_equal(t.len, 32); /* without the newline */
    setenv("RLENGINE_TOKEN_FILE", path, 1);
    assert_int_equal(rle_token_default(&t), RLE_OK);
    unsetenv("RLENGINE_TOKEN_FILE");
    assert_int_equal(rle_token_create(path), RLE_ALREADY_EXISTS);
    unlink(path);
    assert_int_equal(rle_token_create(path), RLE_OK);
    struct stat st;
    stat(path, &st);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(rle_token_from_file(path, &t), RLE_OK);
    assert_int_equal(t.len, 64);
    unlink(path);
    assert_int_equal(rle_token_from_file(test_folder, &t), RLE_UNAUTHENTICATED);
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(write(fds[1], "0123456789abcdef0123456789abcdef", 32), 32);
    close(fds[1]);
    assert_int_equal(rle_token_from_fd(fds[0], &t), RLE_OK);
    assert_int_equal(fcntl(fds[0], F_GETFD), -1); /* closed */
    /* One that is never closed can be interrupted. */
    assert_int_equal(pipe(fds), 0);
    struct sigaction act = {.sa_handler = interrupt}, before;
    sigaction(SIGALRM, &act, &before);
    ualarm(100000, 100000);
    assert_int_equal(rle_token_from_fd(fds[0], &t), RLE_CANCELLED);
    ualarm(0, 0);
    sigaction(SIGALRM, &before, NULL);
    rle_interrupted = 0;
    assert_int_equal(fcntl(fds[0], F_GETFD), -1);
    close(fds[1]);
}

static void binary_tokens_may_end_like_lines(void **state)
{
    (void)state;
    static const char binary[] = "\x01" "123456789abcdef0123456789abcde\n";
    rle_token t;
    assert_int_equal(rle_token_from_bytes(binary, 32, "a test", &t), RLE_OK);
    assert_int_equal(t.len, 32);
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(write(fds[1], binary, 32), 32);
    close(fds[1]);
    assert_int_equal(rle_token_from_fd(fds[0], &t), RLE_OK);
    assert_int_equal(t.len, 32);
}

/* ---- addresses ---- */

static void addresses_are_read(void **state)
{
    (void)state;
    rle_address a;
    assert_int_equal(rle_address_parse("tcp://127.0.0.1:29500", &a), RLE_OK);
    assert_string_equal(a.text, "tcp://127.0.0.1:29500");
    assert_string_equal(a.shown, "127.0.0.1:29500");
    assert_true(a.is_loopback);
    assert_int_equal(rle_address_parse("127.0.0.2:0", &a), RLE_OK);
    assert_true(a.is_loopback);
    assert_int_equal(rle_address_parse("tcp://[::1]:5", &a), RLE_OK);
    assert_string_equal(a.text, "tcp://[::1]:5");
    assert_true(a.is_loopback);
    assert_int_equal(rle_address_parse("tcp://0.0.0.0:5", &a), RLE_OK);
    assert_false(a.is_loopback);
    assert_int_equal(rle_address_parse("tcp://[::]:5", &a), RLE_OK);
    assert_false(a.is_loopback);
    assert_int_equal(rle_address_parse("tcp://[::ffff:10.0.0.1]:5", &a), RLE_OK);
    assert_false(a.is_loopback);
    static const char *const bad[] = {"",           "unix:",      "tcp://",      "tcp://:5",
                                      "127.0.0.1",  "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536",
                                      "::1:5",      "tcp://[::1:5", "http://127.0.0.1:5",
                                      "127.0.0.1:-1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(rle_address_parse(bad[i], &a), RLE_INVALID_ARGUMENT);
    char longer[200] = "unix:/";
    memset(longer + 6, 'x', 120);
    assert_int_equal(rle_address_parse(longer, &a), RLE_INVALID_ARGUMENT);
    assert_non_null(strstr(rle_message(), "holds 107"));
}

static void what_others_could_reach_is_refused(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, "0.0.0.0:29500", NULL), RLE_FAILED_PRECONDITION);
    assert_string_equal(rle_message(),
                        "refusing to listen on 0.0.0.0:29500 without tls; use a loopback "
                        "address, set tls, or set insecure_network=true");
    assert_int_equal(rle_rpc_listen(a, "unix:/tmp/rlengine-open.sock", NULL),
                     RLE_FAILED_PRECONDITION);
    assert_non_null(strstr(rle_message(), "others can enter /tmp (mode 1777)"));
    rle_peer *peer;
    assert_int_equal(rle_rpc_connect(a, "tcp://10.255.255.1:9", RLE_SECONDS, &peer),
                     RLE_FAILED_PRECONDITION);
    rle_rpc_free(a);
    rle_rpc *b = worker("b", &(rle_rpc_options){.insecure_network = true});
    char bound[RLE_ADDRESS_MAX];
    assert_int_equal(rle_rpc_listen(b, "tcp://0.0.0.0:0", bound), RLE_OK);
    assert_true(logged("without tls"));
    rle_rpc_free(b);
}

/* Who listens at every address says one that others can use. */
static void the_address_that_is_told_can_be_connected_to(void **state)
{
    (void)state;
    static const char *const every[] = {"0.0.0.0", "[::]"}, *const one[] = {"127.0.0.1",
                                                                            "[::1]"};
    for (int i = 0; i < 2; i++) {
        char address[RLE_ADDRESS_MAX], want[RLE_ADDRESS_MAX];
        char list[RLE_REF_ADDRESSES][RLE_ADDRESS_MAX];
        rle_rpc_options o = {.insecure_network = true};
        rle_rpc *a = worker("a", &o), *b = worker("b", &o);
        snprintf(address, sizeof address, "tcp://%s:0", every[i]);
        assert_int_equal(rle_rpc_listen(a, address, address), RLE_OK);
        snprintf(want, sizeof want, "tcp://%s:%s", one[i], strrchr(address, ':') + 1);
        rle_peer *to_a = rle_rpc_peer(b, "a");
        rle_peer_hint(b, to_a, (const char *const[]){want}, 1);
        rle_rpc_enter(b);
        rle_peer_open(to_a);
        rle_rpc_leave(b);
        for (int k = 0; k < 200 && !rle_peer_connected(b, to_a); k++) turn(a, b);
        assert_true(rle_peer_connected(b, to_a));
        assert_int_equal(rle_peer_addresses(b, to_a, list), 1);
        assert_string_equal(list[0], want);
        rle_rpc_free(b);
        rle_rpc_free(a);
    }
    rle_rpc_options o = {.insecure_network = true};
    rle_rpc *a = worker("a", &o);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    assert_int_equal(rle_rpc_listen(a, "tcp://0.0.0.0:0", NULL), RLE_OK);
    rle_rpc *b = worker("b", &o);
    char list[RLE_REF_ADDRESSES][RLE_ADDRESS_MAX];
    assert_int_equal(rle_peer_addresses(b, link_to(b, a), list), 1);
    assert_string_equal(list[0], test_address);
    rle_rpc_free(b);
    rle_rpc_free(a);
}

static void f37_a_folder_is_made_and_a_dead_socket_taken_over(void **state)
{
    (void)state;
    char address[128], path[128];
    snprintf(address, sizeof address, "unix:%s/sub/x.sock", test_folder);
    snprintf(path, sizeof path, "%s/sub", test_folder);
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, address, NULL), RLE_OK);
    struct stat st;
    stat(path, &st);
    assert_int_equal(st.st_mode & 0777, 0700);
    rle_rpc *b = worker("b", NULL);
    assert_int_equal(rle_rpc_listen(b, address, NULL), RLE_UNAVAILABLE);
    char want[256];
    snprintf(want, sizeof want,
             "cannot listen on %s: address already in use by pid %d (test_rpc_handsh)",
             address, (int)getpid());
    assert_string_equal(rle_message(), want);
    rle_rpc_free(b);
    rle_rpc_free(a);
    /* A socket nobody listens at any more. */
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    snprintf(un.sun_path, sizeof un.sun_path, "%s/sub/x.sock", test_folder);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&un, sizeof un), 0);
    close(fd);
    rle_rpc *again = worker("again", NULL);
    assert_int_equal(rle_rpc_listen(again, address, NULL), RLE_OK);
    rle_rpc_free(again);
    rmdir(path);
}

static void f37_ports_in_use_are_named(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL), *b = worker("b", NULL);
    char bound[RLE_ADDRESS_MAX], want[256];
    static const char *const any[] = {"127.0.0.1:0", "[::1]:0"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rle_rpc_listen(a, any[i], bound), RLE_OK);
        int64_t began = rle_now();
        assert_int_equal(rle_rpc_listen(b, bound, NULL), RLE_UNAVAILABLE);
        figure("F37", "%s: in use, said after %.1f ms", any[i],
               (double)(rle_now() - began) / 1e6);
        snprintf(
            want, sizeof want,
            "cannot listen on %s: address already in use by pid %d (test_rpc_handsh)",
            bound + 6, (int)getpid());
        assert_string_equal(rle_message(), want);
    }
    rle_rpc_free(a);
    rle_rpc_free(b);
}

static void names_have_64_plain_letters(void **state)
{
    (void)state;
    rle_rpc *rpc;
    char longer[80];
    memset(longer, 'x', 65);
    longer[65] = 0;
    const char *const bad[] = {"", "a b", "a/b", "\xc3\xa4", longer, NULL};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rle_rpc_options o = {.name = bad[i], .token = &test_token};
        assert_int_equal(rle_rpc_new(&o, &rpc), RLE_INVALID_ARGUMENT);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(both_sides_learn_each_other),
        TEST(every_flipped_bit_of_a_proof_is_refused),
        TEST(a_recorded_handshake_is_of_no_use),
        TEST(the_refused_side_is_told_which_token),
        TEST(a_name_is_taken_once),
        TEST(f32_versions_without_overlap_are_named_on_both_sides),
        TEST(strangers_get_nothing_and_cost_little),
        TEST(a_handshake_takes_5_seconds_at_most),
        TEST(token_files_are_read_strictly),
        TEST(binary_tokens_may_end_like_lines),
        TEST(addresses_are_read),
        TEST(what_others_could_reach_is_refused),
        TEST(the_address_that_is_told_can_be_connected_to),
        TEST(f37_a_folder_is_made_and_a_dead_socket_taken_over),
        TEST(f37_ports_in_use_are_named),
        TEST(names_have_64_plain_letters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
