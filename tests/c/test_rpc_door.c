/* test_rpc_door.c - who has failed too often over TCP is not answered, and who is: the
 * users of a machine have one address. */
#include "rpc_door.h"

static void f33_ten_refusals_a_minute_close_the_door_on_tcp(void **state)
{
    (void)state;
    bool told = users_are_told_apart();
    static const char *const listen[] = {"tcp://127.0.0.1:0", "tcp://[::1]:0"};
    for (int v = 0; v < 2; v++) {
        rle_rpc *a = worker("a", NULL);
        char bound[RLE_ADDRESS_MAX];
        assert_int_equal(rle_rpc_listen(a, listen[v], bound), RLE_OK);
        size_t fds = open_fds();
        for (int i = 0; i < 10; i++) fail_and_go(a, NULL);
        assert_int_equal(refused_by(a), 10);
        assert_true(logged(v ? "refused [::1]:" : "refused 127.0.0.1:"));
        assert_true(logged("wrong token (10 in the last minute)"));
        /* Not even looked at any more. */
        for (int i = 0; i < 5; i++) fail_and_go(a, NULL);
        assert_int_equal(refused_by(a), 10);
        /* But one that is there is known: a user who has the token is let in. */
        assert_true(lets_in(a, &test_token) == told);
        assert_int_equal(open_fds(), fds);
        rle_rpc_free(a);
    }
}

/* Who could read the token is not shut out, however often it fails: it uses an old one.
 */
static void ones_own_processes_are_never_shut_out(void **state)
{
    (void)state;
    if (!users_are_told_apart()) return;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, "tcp://127.0.0.1:0", NULL), RLE_OK);
    rle_token other = test_token;
    other.bytes[0] ^= 1;
    for (int i = 0; i < 20; i++) assert_false(lets_in(a, &other));
    assert_int_equal(refused_by(a), 20);
    assert_true(logged("wrong token (10 in the last minute)"));
    assert_true(lets_in(a, &test_token));
    rle_rpc_free(a);
}

/* Who closes its half of the connection still waits for the answer, and can be told. */
static void whose_a_socket_is_that_has_sent_all(void **state)
{
    (void)state;
    if (!users_are_told_apart()) return;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, "tcp://127.0.0.1:0", NULL), RLE_OK);
    raw r = tcp_connect(a, NULL);
    for (int i = 0; i < 5; i++) turn(a, NULL);
    int fd = a->conns->transport.fd;
    uid_t uid = geteuid() + 1;
    assert_int_equal(shutdown(r.fd, SHUT_WR), 0);
    assert_true(rle_socket_owner(fd, &uid));
    assert_int_equal(uid, geteuid());
    close(r.fd); /* it belongs to nobody now, whatever the kernel says */
    assert_false(rle_socket_owner(fd, &uid));
    rle_rpc_free(a);
}

/* Another user of this machine shuts out itself, and nobody else. */
static void f33_another_user_shuts_out_itself_alone(void **state)
{
    (void)state;
    enum { NOBODY = 65534 };
    if (!users_are_told_apart()) return;
    if (geteuid() != 0) {
        print_message("skipped: becoming another user needs root\n");
        return;
    }
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, "tcp://127.0.0.1:0", NULL), RLE_OK);
    rle_token other = test_token;
    other.bytes[0] ^= 1;
    /* The process that connects has the user's rights when it makes its socket. */
    assert_int_equal(seteuid(NOBODY), 0);
    for (int i = 0; i < 10; i++) {
        rle_rpc *b = worker("b", &(rle_rpc_options){.token = &other});
        rle_peer *to_a = rle_rpc_peer(b, "a");
        char list[RLE_REF_ADDRESSES][RLE_ADDRESS_MAX];
        assert_true(rle_rpc_own_addresses(a, list) > 0);
        rle_peer_hint(b, to_a, (const char *const[]){list[0]}, 1);
        rle_rpc_enter(b);
        rle_peer_open(to_a);
        rle_rpc_leave(b);
        for (int k = 0; k < 50; k++) {
            turn(b, NULL);
            assert_int_equal(seteuid(0), 0);
            turn(a, NULL);
            assert_int_equal(seteuid(NOBODY), 0);
        }
        rle_rpc_free(b);
    }
    raw theirs = tcp_connect(a, NULL);
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(refused_by(a), 10);
    for (int i = 0; i < 5; i++) turn(a, NULL);
    assert_int_equal(a->half_open, 0); /* closed at once */
    assert_int_equal(recv(theirs.fd, (char[1]){0}, 1, 0), 0);
    close(theirs.fd);
    assert_true(lets_in(a, &test_token));
    rle_rpc_free(a);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(f33_ten_refusals_a_minute_close_the_door_on_tcp),
        TEST(ones_own_processes_are_never_shut_out),
        TEST(whose_a_socket_is_that_has_sent_all),
        TEST(f33_another_user_shuts_out_itself_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
