/* test_base.c - status, counting allocator and its faults, contexts, script lines,
 * threads. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "base/context.h"
#include "base/dtype.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/thread.h"

static void status_message_may_quote_itself(void **state)
{
    (void)state;
    rle_fail(RLE_NOT_FOUND, "first %d", 1);
    assert_int_equal(rle_fail(RLE_INTERNAL, "second, after %s", rle_message()),
                     RLE_INTERNAL);
    assert_string_equal(rle_message(), "second, after first 1");
    assert_string_equal(rle_status_name(RLE_UNAVAILABLE), "UNAVAILABLE");
    assert_int_equal(rle_status_from_name("DATA_LOSS"), RLE_DATA_LOSS);
    assert_int_equal(rle_status_from_name("NO_SUCH"), -1);
}

static void allocator_counts_and_fails_on_demand(void **state)
{
    (void)state;
    size_t bytes = rle_mem_bytes(), blocks = rle_mem_blocks();
    char *p = rle_malloc(100);
    assert_true(rle_mem_bytes() >= bytes + 100);
    rle_mem_fault(1, false);
    assert_null(rle_realloc(p, 1000)); /* p stays valid */
    memset(p, 1, 100);
    p = rle_realloc(p, 1000);
    assert_non_null(p);
    rle_mem_fault(2, true);
    void *q = rle_malloc(1);
    assert_non_null(q);
    assert_null(rle_malloc(1));
    assert_null(rle_malloc(1));
    rle_mem_fault(0, false);
    rle_free(q);
    rle_free(p);
    assert_int_equal(rle_mem_bytes(), bytes);
    assert_int_equal(rle_mem_blocks(), blocks);
}

static void contexts_switch_and_return(void **state)
{
    (void)state;
    rle_context own;
    rle_context_init(&own);
    own.grad_enabled = false;
    rle_context *before = rle_context_switch(&own);
    assert_false(rle_context_current()->grad_enabled);
    assert_ptr_equal(rle_context_switch(before), &own);
    assert_true(rle_context_current()->grad_enabled);
}

static void sites_are_the_same_number_for_the_same_line(void **state)
{
    (void)state;
    uint32_t a = rle_site_intern("train.lua", 88);
    assert_int_equal(rle_site_intern("train.lua", 88), a);
    for (int line = 1; line <= 2000; line++) rle_site_intern("other.lua", line);
    assert_int_equal(rle_site_intern("train.lua", 88), a);
    assert_string_equal(rle_site_name(a), "train.lua:88");
    assert_string_equal(rle_site_name(rle_site_intern("other.lua", 1999)),
                        "other.lua:1999");
    assert_string_equal(rle_site_name(0), "?");
}

static void dtypes_have_names_and_sizes(void **state)
{
    (void)state;
    rle_dtype t;
    assert_int_equal(rle_dtype_parse("i64", &t), RLE_OK);
    assert_int_equal(t, RLE_I64);
    assert_int_equal(rle_dtype_size(t), 8);
    assert_int_equal(rle_dtype_parse("float", &t), RLE_INVALID_ARGUMENT);
    rle_array a = {.dtype = RLE_F32, .ndim = 2, .shape = {2, 3}};
    rle_array_set_contiguous(&a);
    char text[64];
    assert_string_equal(rle_array_describe(&a, text, sizeof text), "f32[2,3]");
    assert_true(rle_array_is_contiguous(&a));
}

static void what_is_too_large_is_refused_with_the_sum(void **state)
{
    (void)state;
    size_t available = rle_mem_available();
    assert_true(available > 1 << 20);
    assert_int_equal(rle_mem_check(1000, 1000, "a thing"), RLE_OK);
    assert_int_equal(rle_mem_check((size_t)1 << 20, (size_t)1 << 30, "replay"),
                     RLE_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(rle_message(), "out of memory: replay: 1048576 of 1073741824 "
                                          "bytes are 1048576.0 GiB together"));
    assert_int_equal(rle_mem_check(SIZE_MAX / 2, 3, "a thing"), RLE_RESOURCE_EXHAUSTED);
}

/* How many signals are blocked of those that a process is stopped with. */
static int blocked(void)
{
    static const int asked[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGALRM};
    sigset_t now;
    int n = 0;
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        n += sigismember(&now, asked[i]);
    return n;
}

static void *count_blocked(void *self)
{
    atomic_store((_Atomic int *)self, blocked());
    return self;
}

static void threads_take_no_signals(void **state)
{
    (void)state;
    pthread_t thread;
    void *returned;
    _Atomic int joined = -1, alone = -1;
    int before = blocked();
    assert_int_equal(rle_thread_start(count_blocked, &joined, "a test", &thread), RLE_OK);
    assert_int_equal(pthread_join(thread, &returned), 0);
    assert_ptr_equal(returned, &joined);
    assert_int_equal(joined, 5);
    assert_int_equal(rle_thread_start(count_blocked, &alone, "a test", NULL), RLE_OK);
    for (int i = 0; i < 60000 && alone < 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    assert_int_equal(alone, 5);
    assert_int_equal(blocked(), before);
}

static void a_thread_that_cannot_start(void **state)
{
    (void)state;
    pthread_t thread;
    _Atomic int ran = -1;
    int before = blocked();
    rle_fault_order(RLE_FAULT_IO, 1, false);
    assert_int_equal(rle_thread_start(count_blocked, &ran, "a test", &thread),
                     RLE_RESOURCE_EXHAUSTED);
    rle_fault_order(RLE_FAULT_IO, 0, false);
    assert_non_null(strstr(rle_message(), "no thread for a test: "));
    assert_int_equal(blocked(), before);
    assert_int_equal(ran, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_message_may_quote_itself),
        cmocka_unit_test(allocator_counts_and_fails_on_demand),
        cmocka_unit_test(contexts_switch_and_return),
        cmocka_unit_test(sites_are_the_same_number_for_the_same_line),
        cmocka_unit_test(what_is_too_large_is_refused_with_the_sum),
        cmocka_unit_test(dtypes_have_names_and_sizes),
        cmocka_unit_test(threads_take_no_signals),
        cmocka_unit_test(a_thread_that_cannot_start),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
