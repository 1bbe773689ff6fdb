/* test_cpu_isa.c - the choice of instruction set, and operations that need memory they do
 * not get. */
#include "cpu_check.h"

#include "base/mem.h"

static void the_environment_asks_for_less(void **state)
{
    (void)state;
    setenv("RLENGINE_CPU", "baseline", 1); /* before anything has asked for the table */
    assert_string_equal(rle_cpu_isa(), "baseline");
    assert_false(rle_cpu_use("sse9"));
    assert_string_equal(rle_cpu_isa(), "baseline");
    assert_true(rle_cpu_use("baseline"));
    for (FOR_EACH_ISA(i)) assert_string_equal(rle_cpu_isa(), check_isas[i]);
}

static void without_memory_nothing_is_written(void **state)
{
    (void)state;
    const rle_device_ops *ops = rle_cpu_ops();
    int64_t shape[2] = {1000, 3};
    box in = box_new(RLE_F32, 2, shape, DENSE), out = box_new(RLE_F32, 2, shape, DENSE);
    box index = box_new(RLE_I64, 2, shape, DENSE);
    box_fill(&in);
    box_fill(&out);
    box_fill(&index);
    box kept = box_copy(&out), kept_index = box_copy(&index);
    size_t blocks = rle_mem_blocks();
    rle_mem_fault(1, false);
    assert_int_equal(ops->sort(NULL, &out.a, &index.a, &in.a, 0, false),
                     RLE_RESOURCE_EXHAUSTED);
    rle_mem_fault(1, false);
    assert_int_equal(ops->softmax(NULL, false, &out.a, &in.a, 0), RLE_RESOURCE_EXHAUSTED);
    rle_mem_fault(1, false);
    assert_int_equal(ops->softmax_backward(NULL, true, &out.a, &in.a, &in.a, 0),
                     RLE_RESOURCE_EXHAUSTED);
    rle_mem_fault(0, false);
    assert_memory_equal(out.mem, kept.mem, out.bytes);
    assert_memory_equal(index.mem, kept_index.mem, index.bytes);
    assert_int_equal(ops->sort(NULL, &out.a, &index.a, &in.a, 0, false), RLE_OK);
    assert_int_equal(ops->softmax(NULL, false, &out.a, &in.a, 0), RLE_OK);
    assert_int_equal(rle_mem_blocks(), blocks);
    box_free(&in);
    box_free(&out);
    box_free(&index);
    box_free(&kept);
    box_free(&kept_index);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_environment_asks_for_less),
        cmocka_unit_test(without_memory_nothing_is_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
