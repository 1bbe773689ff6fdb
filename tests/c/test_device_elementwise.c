/* test_device_elementwise.c - fill, copy and the elementwise operations on a device
 * against the CPU: bit for bit. */
#include "device_check.h"

static void fills_and_casts(void **state)
{
    (void)state;
    FOR_EACH_MODE(m)
    {
        for (int round = 0; round < 40; round++) {
            int64_t shape[RLE_MAX_DIMS];
            int ndim;
            some_shape(&ndim, shape, 3000);
            for (int to = 0; to <= RLE_BOOL; to++) {
                rle_dtype from = (rle_dtype)below(RLE_BOOL + 1);
                box x = box_new(from, ndim, shape, (layout)below(LAYOUTS));
                box y = box_new((rle_dtype)to, ndim, shape, (layout)below(BROADCAST));
                box_fill(&x);
                twin dx = twin_of(&x), dy = twin_of(&y);
                assert_int_equal(cpu->ops->copy(cpu, &y.a, &x.a), RLE_OK);
                assert_int_equal(dev->ops->copy(dev, &dy.a, &dx.a), RLE_OK);
                twin_check(&dy, 0, 0, "copy");
                assert_int_equal(cpu->ops->fill(cpu, &y.a, 3, 3), RLE_OK);
                assert_int_equal(dev->ops->fill(dev, &dy.a, 3, 3), RLE_OK);
                twin_check(&dy, 0, 0, "fill");
                twin_free(&dx), twin_free(&dy), box_free(&x), box_free(&y);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fills_and_casts),
    };
    return cmocka_run_group_tests(tests, device_setup, device_finish);
}
