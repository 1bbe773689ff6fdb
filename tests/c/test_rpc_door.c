/* test_rpc_door.c - who has failed too often over TCP is not answered, and who is: the
 * users of a machine have one address. */
#include <fcntl.h>
#include <stdarg.h>
#include <sys/syscall.h>

#include "figure.h"
#include "rpc_door.h"
#include "rpc_link.h"

/* ---- systems that do not tell ---- */

static bool no_diag, no_table;

/* A kernel without sock_diag. */
int socket(int family, int type, int protocol)
{
    if (no_diag && family == AF_NETLINK) {
        errno = EPROTONOSUPPORT;
        return -1;
    }
    return (int)syscall(SYS_socket, family, type, protocol);
}

/* A system without /proc. */
int open(const char *path, int flags, ...)
{
    if (no_table && strncmp(path, "/proc/net/", 10) == 0) {
        errno = ENOENT;
        return -1;
    }
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
    va_end(list);
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static int by_the_table(void **state)
{
    no_diag = true;
    return pair_setup(state);
}

static int by_nothing(void **state)
{
    no_table = true;
    return by_the_table(state);
}

static int told_again(void **state)
{
    no_diag = no_table = false;
    return pair_teardown(state);
}

/* ---- the door ---- */

static void f33_ten_refusals_a_minute_close_the_door_on_tcp(void **state)
{
    (void)state;
    bool told = users_are_told_apart();
    assert_true(told || !no_diag);
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
        if (told) assert_int_equal(open_fds(), fds); /* else some of them wait */
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
    assert_int_equal(rle_socket_owner(fd, &uid), RLE_OWNER_TOLD);
    assert_int_equal(uid, geteuid());
    close(r.fd); /* it belongs to nobody now, whatever the kernel says */
    assert_int_equal(rle_socket_owner(fd, &uid), RLE_OWNER_NONE);
    rle_rpc_free(a);
}

/* It may have a socket of IPv6 for an address of IPv4. */
static void whose_a_socket_of_the_other_kind_is(void **state)
{
    (void)state;
    if (!users_are_told_apart()) return;
    rle_rpc *a = worker("a", NULL);
    char bound[RLE_ADDRESS_MAX];
    assert_int_equal(rle_rpc_listen(a, "tcp://127.0.0.1:0", bound), RLE_OK);
    struct sockaddr_in6 to = {.sin6_family = AF_INET6,
                              .sin6_port = htons((in_port_t)atoi(strrchr(bound, ':') + 1))};
    assert_int_equal(inet_pton(AF_INET6, "::ffff:127.0.0.1", &to.sin6_addr), 1);
    raw r = {.server = a, .fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    assert_int_equal(connect(r.fd, (struct sockaddr *)&to, sizeof to), 0);
    for (int i = 0; i < 5; i++) turn(a, NULL);
    uid_t uid = geteuid() + 1;
    assert_int_equal(rle_socket_owner(a->conns->transport.fd, &uid), RLE_OWNER_TOLD);
    assert_int_equal(uid, geteuid());
    raw_close(&r);
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

/* Where nothing tells of whom the wrong tokens are, nobody of this machine is shut out:
 * all of them have to wait. */
static void f33_users_who_cannot_be_told_apart_wait(void **state)
{
    (void)state;
    rle_token other = test_token;
    other.bytes[0] ^= 1;
    static const char *const listen[] = {"tcp://127.0.0.1:0", "tcp://[::1]:0"};
    for (int v = 0; v < 2; v++) {
        size_t blocks = rle_mem_blocks(), fds = open_fds();
        rle_rpc *a = worker("a", NULL);
        assert_int_equal(rle_rpc_listen(a, listen[v], NULL), RLE_OK);
        assert_true(lets_in(a, &test_token)); /* at once */
        for (int i = 0; i < 10; i++) assert_false(lets_in(a, &other));
        assert_int_equal(refused_by(a), 10);
        assert_true(
            logged(v ? "whoever connects from ::1 waits for 1 s: there were 10 "
                       "refusals in the last minute, and this system does not tell "
                       "of which user"
                     : "whoever connects from 127.0.0.1 waits for 1 s: "));
        assert_false(lets_in(a, &other));
        assert_int_equal(refused_by(a), 10); /* not yet */
        int64_t began = rle_now();
        rle_rpc *b = worker("b", NULL);
        rle_peer *to_a = link_to(b, a);
        for (int i = 0; i < 10000 && !rle_peer_connected(b, to_a); i++) {
            turn(a, b);
            usleep(1000);
        }
        assert_true(rle_peer_connected(b, to_a));
        double took = (double)(rle_now() - began) / RLE_SECONDS;
        assert_true(took > 0.9);
        figure("F33",
               "a user with the token, where users cannot be told apart: let in "
               "after %.2f s",
               took);
        /* Said once, however many come. */
        assert_int_equal(times_logged("waits for"), v + 1);
        rle_rpc_free(b);
        rle_rpc_free(a);
        assert_int_equal(rle_mem_blocks(), blocks);
        assert_int_equal(open_fds(), fds);
    }
}

/* However many sockets there are, and however often somebody comes. */
static void the_table_is_not_read_all_the_time(void **state)
{
    (void)state;
    enum { MOST = 1000000 };
    if (!users_are_told_apart()) return;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, "tcp://127.0.0.1:0", NULL), RLE_OK);
    raw r = tcp_connect(a, NULL);
    for (int i = 0; i < 5; i++) turn(a, NULL);
    uid_t uid;
    int64_t began = rle_now();
    int looks = 0;
    while (looks < MOST && rle_socket_owner(r.fd, &uid) == RLE_OWNER_TOLD) looks++;
    assert_true(looks < MOST);
    figure("F33", "sockets looked up in the table at once: %d in %.0f ms", looks,
           (double)(rle_now() - began) / 1e6);
    for (int i = 0; i < 100 && rle_socket_owner(r.fd, &uid) != RLE_OWNER_TOLD; i++)
        usleep(100000);
    assert_int_equal(rle_socket_owner(r.fd, &uid), RLE_OWNER_TOLD);
    raw_close(&r);
    rle_rpc_free(a);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)
#define TABLE(f)                                                                         \
    {                                                                                    \
#f "_by_the_table", f, by_the_table, told_again, NULL                            \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(f33_ten_refusals_a_minute_close_the_door_on_tcp),
        TEST(ones_own_processes_are_never_shut_out),
        TEST(whose_a_socket_is_that_has_sent_all),
        TEST(whose_a_socket_of_the_other_kind_is),
        TEST(f33_another_user_shuts_out_itself_alone),
        TABLE(f33_ten_refusals_a_minute_close_the_door_on_tcp),
        TABLE(ones_own_processes_are_never_shut_out),
        TABLE(whose_a_socket_is_that_has_sent_all),
        TABLE(whose_a_socket_of_the_other_kind_is),
        TABLE(f33_another_user_shuts_out_itself_alone),
        TABLE(the_table_is_not_read_all_the_time),
        {"f33_users_who_cannot_be_told_apart_wait",
         f33_users_who_cannot_be_told_apart_wait, by_nothing, told_again, NULL},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
