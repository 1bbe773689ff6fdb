/* test_rpc_strangers.c - those who come to the door and prove nothing, and members that
 * come and go: what they and others write into the log, and that the door opens again
 * after memory was short. */
#include "rpc_pair.h"

#include "base/fault.h"
#include "figure.h"
#include "shifted_clock.h"

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

/* ---- members ---- */

/* It has the token, joins and goes, joins and goes. */
static void one_that_comes_and_goes_is_told_of_once_a_second(void **state)
{
    (void)state;
    enum { TIMES = 300 };
    rle_clock c = {shifted, NULL};
    clock_ahead = 0;
    rle_clock_set(&c);
    rle_rpc *a = worker("a", &(rle_rpc_options){.heartbeat = RLE_SECONDS / 10});
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    int64_t began = rle_now();
    for (int i = 0; i < TIMES; i++) {
        raw r = raw_join(a, "x");
        raw_close(&r);
    }
    int seconds = 1 + (int)((rle_now() - began) / RLE_SECONDS);
    assert_in_range(lines_now(), 1, 1 + seconds);
    assert_string_equal(
        test_log[0],
        "worker \"x\" lost: end of stream; 0 calls failed, 0 references released");
    /* How often it was is said when the second is over. */
    clock_ahead += RLE_SECONDS;
    for (int i = 0; i < 100 && lines_now() < 2; i++) {
        turn(a, NULL);
        usleep(10000);
    }
    int told = 0, more = 0;
    for (int i = 0; i < lines_now(); i++) {
        const char *at = strstr(test_log[i], " (");
        told +=
            at && sscanf(at, " (%d times more within a second)", &more) == 1 ? more : 1;
    }
    assert_int_equal(told, TIMES);
    figure("F16", "a member that came and went %d times at once: %d lines in the log",
           TIMES, lines_now());
    rle_rpc_free(a);
    rle_clock_set(NULL);
}

/* By a new name each time. */
static void many_that_come_and_go_do_not_fill_the_log(void **state)
{
    (void)state;
    enum { MANY = 1500 };
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    int64_t began = rle_now();
    for (int i = 0; i < MANY; i++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", i);
        raw r = raw_join(a, name);
        raw_close(&r);
    }
    int lines = lines_now(), left = MANY - lines;
    int64_t took = rle_now() - began;
    assert_in_range(lines, 1000, 1002 + (int)(10 * took / RLE_SECONDS));
    rle_rpc_free(a);
    char want[128];
    snprintf(want, sizeof want,
             "%d more lines about workers that come and go were left out", left);
    assert_string_equal(test_log[lines % 64], want);
    figure("F16", "%d members at once, each of another name: %d lines in the log", MANY,
           lines);
}

/* Another line is not held back, and one that came alone is not told of again. */
static void other_lines_are_told_at_once(void **state)
{
    (void)state;
    rle_rpc *a = worker("a", NULL);
    assert_int_equal(rle_rpc_listen(a, test_address, NULL), RLE_OK);
    for (int i = 0; i < 40; i++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", i);
        raw r = raw_join(a, name);
        raw_close(&r);
        assert_int_equal(lines_now(), i + 1);
    }
    rle_rpc_free(a);
    assert_int_equal(lines_now(), 40);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(many_strangers_do_not_fill_the_log),
        TEST(one_that_comes_and_goes_is_told_of_once_a_second),
        TEST(many_that_come_and_go_do_not_fill_the_log),
        TEST(other_lines_are_told_at_once),
        TEST(nobody_else_writes_lines_of_ours),
        TEST(f25_accepting_begins_again_whatever_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
