/* test_device_oom.c - a device without memory: what is let go of in which order, what the
 * error and its report say, and that the report adds up. */
#include "memory_host.h"

static rle_block victim;

static bool give_way(void *self, rle_device *dev, size_t wanted)
{
    (void)self, (void)wanted;
    note("collect", 0);
    if (!victim.data) return false;
    rle_device_free(dev, &victim);
    return true;
}

static void it_lets_go_in_order_and_asks_once_more(void **state)
{
    (void)state;
    driver.capacity = 8 * MIB;
    work w = {0};
    rle_block small = block_of(&host, 100), a = block_of(&host, 100);
    victim = block_of(&host, 2 * MIB);
    assert_int_equal(rle_device_guard(&host, &a, work_ready, &w), RLE_OK);
    rle_device_free(&host, &a);
    rle_device_free(&host, &small);
    rle_device_on_pressure(give_way, NULL);
    driver.log[0] = 0;
    rle_block b = block_of(&host, 7 * MIB);
    assert_string_equal(driver.log, "take 20; take 8; wait; guard; collect; give 2; "
                                    "give 2; take 20; take 8; ");
    assert_int_equal(stats_of(&host).retries, 1);
    assert_int_equal(stats_of(&host).refused, 0);
    rle_block c;
    assert_int_equal(rle_device_alloc(&host, 7 * MIB, &c), RLE_RESOURCE_EXHAUSTED);
    assert_int_equal(stats_of(&host).retries, 2);
    assert_int_equal(stats_of(&host).refused, 1);
    rle_device_on_pressure(NULL, NULL);
    rle_device_free(&host, &b);
}

static void a_driver_that_fails_once_is_asked_again(void **state)
{
    (void)state;
    driver.fail = 1;
    rle_block a = block_of(&host, 100);
    assert_int_equal(stats_of(&host).retries, 1);
    assert_int_equal(stats_of(&host).refused, 0);
    driver.fail = 2;
    rle_block b;
    assert_int_equal(rle_device_alloc(&host, 64 * MIB, &b), RLE_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(rle_message(), "out of device memory: wanted 64.0 MiB, "));
    assert_non_null(strstr(rle_message(), " free of 8.0 GiB, but the driver refused"));
    assert_int_equal(stats_of(&host).refused, 1);
    rle_device_free(&host, &a);
}

static void the_refusal_says_what_holds_the_memory_and_what_to_do(void **state)
{
    (void)state;
    rle_block held[12];
    driver.capacity = 2048 * MIB;
    rle_device_set_limit(&host, 256 * MIB);
    at_line(10);
    rle_context_current()->owner = RLE_OWNER_WEIGHTS;
    held[0] = block_of(&host, 16 * MIB);
    rle_device_mark(&host, "episode 2");
    rle_context_current()->owner = RLE_OWNER_GRAPH;
    at_line(88);
    for (int i = 1; i < 12; i++) held[i] = block_of(&host, 20 * MIB);
    rle_block b;
    assert_int_equal(rle_device_alloc(&host, 21 * MIB, &b), RLE_RESOURCE_EXHAUSTED);
    assert_string_equal(
        rle_message(),
        "out of device memory: wanted 21.0 MiB, 20.0 MiB free of 256.0 MiB; "
        "most held by train.lua:88 (11 tensors, 220.0 MiB)");
    const char *report = rle_device_oom_report();
    assert_int_equal(strncmp(report, rle_message(), strlen(rle_message())), 0);
    static const char *const parts[] = {
        ("host:0: limit 256.0 MiB, reserved 236.0 MiB (allocated 236.0 MiB, rounding 0 "
         "bytes, "
         "free 0 bytes, largest free block 0 bytes)"),
        "asked once more (1 times so far, 1 in vain)",
        "     220.0 MiB  graph           11 tensors train.lua:88",
        "      16.0 MiB  weights          1 tensor  train.lua:10",
        "grew most since episode 2:\n     220.0 MiB  graph",
        "try: letting go of the results that train.lua:88 keeps with their graph",
        "or a higher limit",
        "memory of host:0: 236.0 MiB allocated",
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(report, parts[i])) fail_msg("no \"%s\" in\n%s", parts[i], report);
    rle_context_current()->owner = RLE_OWNER_TENSOR;
    at_line(0);
    for (int i = 0; i < 12; i++) rle_device_free(&host, &held[i]);
}

/* What is advised when `owner` holds most. */
static const char *advice(rle_owner owner)
{
    rle_device_set_limit(&host, 32 * MIB);
    rle_context_current()->owner = (uint8_t)owner;
    at_line(5);
    rle_block a = block_of(&host, 30 * MIB), b;
    assert_int_equal(rle_device_alloc(&host, 4 * MIB, &b), RLE_RESOURCE_EXHAUSTED);
    rle_context_current()->owner = RLE_OWNER_TENSOR;
    at_line(0);
    rle_device_free(&host, &a);
    return strstr(rle_device_oom_report(), "try: ");
}

static void the_advice_fits_the_owner(void **state)
{
    (void)state;
    assert_non_null(
        strstr(advice(RLE_OWNER_TENSOR), "made at train.lua:5: set it to nil"));
    assert_non_null(strstr(advice(RLE_OWNER_OPTIMIZER), "its optimizer alone"));
    assert_non_null(strstr(advice(RLE_OWNER_ENV), "fewer environments"));
    assert_non_null(strstr(advice(RLE_OWNER_RPC), "fewer calls"));
    rle_block b;
    assert_int_equal(rle_device_alloc(&host, 64 * MIB, &b), RLE_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(rle_device_oom_report(), "larger than the limit"));
}

static void memory_in_pieces_is_called_so(void **state)
{
    (void)state;
    rle_device_set_limit(&host, 8 * MIB);
    rle_block held[16];
    for (int i = 0; i < 16; i++) held[i] = block_of(&host, MIB / 2);
    for (int i = 0; i < 16; i += 2) rle_device_free(&host, &held[i]);
    rle_block b;
    assert_int_equal(rle_device_alloc(&host, MIB, &b), RLE_RESOURCE_EXHAUSTED);
    assert_non_null(
        strstr(rle_message(), "4.0 MiB free of 8.0 MiB in pieces of at most 512.0 KiB"));
    assert_non_null(
        strstr(rle_device_oom_report(), "try: making the largest tensors first"));
    for (int i = 1; i < 16; i += 2) rle_device_free(&host, &held[i]);
}

/* ---- workspaces ---- */

static const rle_workspace use = {"a test's workspace", "nothing makes it smaller"};

static rle_status workspace(size_t size, size_t least, void **out, size_t *got)
{
    return rle_device_take_workspace(&host, &use, size, least, out, got);
}

static void workspaces_count_and_room_is_made_for_them(void **state)
{
    (void)state;
    void *p, *q;
    size_t got;
    rle_device_set_limit(&host, 8 * MIB);
    assert_int_equal(workspace(3 * MIB, 3 * MIB, &p, &got), RLE_OK);
    assert_int_equal(got, 4 * MIB);
    assert_int_equal(stats_of(&host).workspace, 4 * MIB);
    assert_int_equal(stats_of(&host).reserved, 4 * MIB);
    rle_memory_usage u;
    assert_int_equal(rle_device_usage(&host, &u), RLE_OK);
    assert_int_equal(u.workspace, 4 * MIB);
    assert_int_equal(u.rounding + u.cached + u.allocated, 0);
    assert_int_equal(u.unaccounted, MIB); /* as before */

    /* What is cached gives way to it at once, the rest in the same order as for blocks.
     */
    rle_block small = block_of(&host, 100);
    rle_device_free(&host, &small);
    driver.log[0] = 0;
    assert_int_equal(workspace(4 * MIB, 4 * MIB, &q, &got), RLE_OK);
    assert_string_equal(driver.log, "give 2; take 4; ");
    assert_int_equal(stats_of(&host).retries, 0);
    rle_device_give_workspace(&host, q, got);
    victim = block_of(&host, 2 * MIB);
    rle_device_on_pressure(give_way, NULL);
    driver.log[0] = 0;
    assert_int_equal(workspace(4 * MIB, 4 * MIB, &q, &got), RLE_OK);
    assert_string_equal(driver.log, "wait; collect; give 2; take 4; ");
    assert_int_equal(stats_of(&host).retries, 1);
    rle_device_on_pressure(NULL, NULL);

    rle_block none;
    assert_int_equal(rle_device_alloc(&host, 100, &none), RLE_RESOURCE_EXHAUSTED);
    rle_device_give_workspace(&host, q, got);
    assert_int_equal(workspace(5 * MIB, 5 * MIB, &q, &got), RLE_RESOURCE_EXHAUSTED);
    assert_string_equal(
        rle_message(),
        "out of device memory: wanted 6.0 MiB, 4.0 MiB free of 8.0 MiB; that "
        "was for a test's workspace, nothing makes it smaller; or it needs a "
        "higher limit");
    assert_non_null(strstr(rle_device_oom_report(), "try: nothing makes it smaller; or a "
                                                    "higher limit (rl.memory.limit"));
    assert_non_null(strstr(rle_device_oom_report(), ", workspace 4.0 MiB)"));
    /* Less, where less will do. */
    assert_int_equal(workspace(8 * MIB, 3 * MIB, &q, &got), RLE_OK);
    assert_int_equal(got, 4 * MIB);
    rle_device_give_workspace(&host, q, got);

    /* What a library took by itself. */
    assert_int_equal(rle_device_count_workspace(&host, &use, 5 * MIB),
                     RLE_RESOURCE_EXHAUSTED);
    assert_int_equal(rle_device_count_workspace(&host, &use, 4 * MIB), RLE_OK);
    assert_int_equal(stats_of(&host).workspace, 8 * MIB);
    rle_device_give_workspace(&host, NULL, 4 * MIB);
    rle_device_give_workspace(&host, p, 4 * MIB);
    assert_int_equal(stats_of(&host).reserved, 0);
    assert_int_equal(stats_of(&host).workspace, 0);
}

/* ---- the report ---- */

static void the_parts_add_up_to_what_the_driver_says(void **state)
{
    (void)state;
    rle_block a = block_of(&host, 1000), b = block_of(&host, 5 * MIB);
    rle_memory_usage u;
    assert_int_equal(rle_device_usage(&host, &u), RLE_OK);
    assert_int_equal(u.used, 25 * MIB);
    assert_int_equal(u.allocated, 1000 + 5 * MIB);
    assert_int_equal(u.rounding, 24);
    assert_int_equal(u.unaccounted, MIB);
    assert_int_equal(
        (int64_t)(u.allocated + u.rounding + u.cached + u.workspace + u.context) +
            u.unaccounted,
        u.used);
    char *text;
    assert_int_equal(rle_device_report_text(&host, &text), RLE_OK);
    assert_non_null(strstr(text, "  unaccounted       1048576"));
    assert_non_null(strstr(text, "in use on the device, of 8.0 GiB"));
    rle_free(text);
    rle_device_free(&host, &a);
    rle_device_free(&host, &b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HOST_TEST(it_lets_go_in_order_and_asks_once_more),
        HOST_TEST(a_driver_that_fails_once_is_asked_again),
        HOST_TEST(the_refusal_says_what_holds_the_memory_and_what_to_do),
        HOST_TEST(the_advice_fits_the_owner),
        HOST_TEST(memory_in_pieces_is_called_so),
        HOST_TEST(workspaces_count_and_room_is_made_for_them),
        HOST_TEST(the_parts_add_up_to_what_the_driver_says),
    };
    return cmocka_run_group_tests_name("device_oom", tests, NULL, NULL);
}
