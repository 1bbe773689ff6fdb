/* test_rpc_strangers.c - those who come to the door and prove nothing: what they and
 * others write into the log, and that the door opens again after memory was short. */
#include "rpc_pair.h"

#include "base/fault.h"
#include "figure.h"

static void knock(rle_rpc *a, const void *bytes, size_t n)
{
    raw r = raw_connect(a);
    raw_write(&r, bytes, n);
    raw_close(&r);
}

static int lines_now(void)
{
    return test_log_count;
}

/* Each is told of while they are few; many at once are counted. */
static void many_strangers_do_not_fill_the_log(void **state)
{
    (void)state;
    enum { MANY = 2000 };
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    for (int i = 0; i < 20; i++) knock(a, "GET / HTTP/1.1\r\n", 16);
    assert_int_equal(lines_now(), 20);
    for (int i = 0; i < MANY; i++) knock(a, "GET / HTTP/1.1\r\n", 16);
    assert_in_range(lines_now(), 20, 110);
    figure("F16", "%d strangers at once: %d lines in the log", MANY + 20, lines_now());
    raw r = raw_join(a, "x"); /* and who has the token is let in meanwhile */
    raw_close(&r);
    rle_rpc_free(a);
}

/* A failure when the pause is over is one more reason to try later, not the end. */
static void f25_accepting_begins_again_whatever_fails(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    snprintf(un.sun_path, sizeof un.sun_path, "%.80s", test_address + 5);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&un, sizeof un), 0);
    rle_fault_order(RLE_FAULT_IO, 1, true);
    for (int i = 0; i < 30; i++) {
        turn(a, NULL);
        usleep(10000);
    }
    rle_fault_order(RLE_FAULT_IO, 0, false);
    assert_true(logged("accepting paused"));
    close(fd);
    for (int i = 0; i < 100 && !logged("accepting again"); i++) {
        turn(a, NULL);
        usleep(10000);
    }
    assert_true(logged("accepting again"));
    raw r = raw_join(a, "x");
    raw_close(&r);
    rle_rpc_free(a);
}

/* What another worker says goes into one line, and begins no other. */
static void nobody_else_writes_lines_of_ours(void **state)
{
    (void)state;
    static const char text[] = "no\nrlengine: worker \"b\" lost\r\x1b[2J";
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    raw r = raw_join(a, "x");
    rle_wire_error e = {.code = RLE_INTERNAL, .message = {text, sizeof text - 1}};
    rle_writer w;
    rle_writer_init(&w);
    rle_error_encode(&w, &e);
    raw_send(&r, (rle_frame){.type = RLE_FRAME_ERROR, .code = RLE_INTERNAL}, w.data,
             w.len);
    rle_writer_fini(&w);
    assert_true(logged("closed \"x\": it says: no rlengine: worker \"b\" lost  [2J"));
    raw_close(&r);
    rle_rpc_free(a);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(many_strangers_do_not_fill_the_log),
        TEST(nobody_else_writes_lines_of_ours),
        TEST(f25_accepting_begins_again_whatever_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
