/* test_device_stream.c - copies through page-locked slots, streams and events, blocks
 * that a stream still uses, several devices, errors that name the operation, ordered
 * failures. */
#include "device_check.h"

#include "base/mem.h"
#include "device/stream.h"

static rle_device *const *both(void)
{
    static rle_device *d[2];
    d[0] = cpu, d[1] = dev;
    return d;
}

static rle_block block_of(rle_device *d, size_t size)
{
    rle_block b;
    if (rle_device_alloc(d, size, &b) != RLE_OK) fail_msg("%s", rle_message());
    return b;
}

#define ok(call)                                                                         \
    do {                                                                                 \
        if ((call) != RLE_OK) fail_msg("%s: %s", #call, rle_message());                  \
    } while (0)

static void fill_bytes(unsigned char *p, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++) p[i] = (unsigned char)(seed + i * 7 + (i >> 8));
}

/* ---- copies ---- */

static void copies_of_any_size_arrive(void **state)
{
    (void)state;
    static unsigned char in[1 << 21], out[1 << 21];
    static const size_t sizes[] = {0,      1,      100,    65535,  65536,  65537,
                                   200000, 262143, 262144, 262145, 1 << 21};
    FOR_EACH_MODE(m)
    {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            rle_block b = block_of(dev, sizeof in);
            fill_bytes(in, sizes[i], (unsigned)i);
            ok(dev->copy_in(dev, b.data, in, sizes[i]));
            memset(in, 0, sizes[i]); /* it may be changed at once */
            ok(dev->copy_out(dev, out, b.data, sizes[i]));
            fill_bytes(in, sizes[i], (unsigned)i);
            assert_memory_equal(in, out, sizes[i]);
            rle_device_free(dev, &b);
        }
    }
}

/* More small copies than there are slots, none of them waited for. */
static void a_slot_is_not_reused_before_it_was_read(void **state)
{
    (void)state;
    enum { COPIES = 100, SIZE = 60000 };
    static unsigned char in[SIZE], out[SIZE], want[SIZE];
    FOR_EACH_MODE(m)
    {
        rle_block b = block_of(dev, (size_t)COPIES * SIZE);
        for (int i = 0; i < COPIES; i++) {
            fill_bytes(in, SIZE, (unsigned)i * 31);
            ok(dev->copy_in(dev, (char *)b.data + (size_t)i * SIZE, in, SIZE));
        }
        for (int i = 0; i < COPIES; i++) {
            fill_bytes(want, SIZE, (unsigned)i * 31);
            ok(dev->copy_out(dev, out, (char *)b.data + (size_t)i * SIZE, SIZE));
            assert_memory_equal(out, want, SIZE);
        }
        rle_device_free(dev, &b);
    }
}

/* ---- streams and events ---- */

static rle_array floats(rle_block *b, int64_t n)
{
    return (rle_array){
        .data = b->data, .dtype = RLE_F32, .ndim = 1, .shape = {n}, .stride = {1}};
}

static void streams_copy_in_the_order_that_events_say(void **state)
{
    (void)state;
    enum { N = 10000 };
    FOR_EACH_MODE(m)
    {
        for (int d = 0; d < 2; d++) {
            rle_device *device = both()[d];
            rle_stream *side;
            rle_event *filled, *read;
            float *host;
            rle_block b = block_of(device, N * 4);
            rle_array a = floats(&b, N);
            ok(rle_stream_new(device, &side));
            ok(rle_event_new(device, false, &filled));
            ok(rle_event_new(device, false, &read));
            ok(rle_pinned_alloc(device, N * 4, (void **)&host));
            assert_ptr_equal(rle_stream_device(side), device);
            for (int i = 0; i < N; i++) host[i] = -1;
            ok(device->ops->fill(device, &a, 3, 3));
            ok(rle_event_record(filled, NULL));
            ok(rle_stream_wait(side, filled));
            ok(rle_stream_copy_out(side, host, b.data, N * 4));
            ok(rle_event_record(read, side));
            ok(rle_event_hold(read)); /* the next fill waits for the copy */
            ok(device->ops->fill(device, &a, 5, 5));
            bool done = false;
            for (int asked = 0; !done && asked < 1000; asked++)
                ok(rle_event_query(read, &done));
            ok(rle_event_synchronize(read));
            for (int i = 0; i < N; i++) assert_true(host[i] == 3);
            for (int i = 0; i < N; i++) host[i] = (float)i;
            ok(rle_event_record(filled, NULL));
            ok(rle_stream_wait(side, filled));
            ok(rle_stream_copy_in(side, b.data, host, N * 4));
            ok(rle_stream_copy_in(side, NULL, NULL, 0));
            ok(rle_stream_copy_out(side, NULL, NULL, 0));
            ok(rle_stream_synchronize(side));
            ok(rle_stream_query(side, &done));
            assert_true(done);
            float got[N];
            ok(device->copy_out(device, got, b.data, N * 4));
            assert_memory_equal(got, host, N * 4);
            rle_event_free(filled), rle_event_free(read), rle_event_free(NULL);
            rle_stream_free(side), rle_stream_free(NULL);
            rle_pinned_free(device, host), rle_pinned_free(device, NULL);
            rle_device_free(device, &b);
        }
    }
}

static rle_memory_stats cpu_stats(void)
{
    rle_memory_stats s;
    rle_device_memory(cpu, &s);
    return s;
}

/* Rows that are received for the device: in the CPU's account, copied without waiting,
 * and given back at once. */
static void pinned_blocks_are_the_cpus_and_read_by_the_device(void **state)
{
    (void)state;
    enum { SIZE = 300000 };
    static unsigned char out[SIZE];
    FOR_EACH_MODE(m)
    {
        for (int d = 0; d < 2; d++) {
            rle_device *device = both()[d];
            rle_memory_stats before = cpu_stats();
            rle_block rows, b = block_of(device, SIZE);
            rle_event *read;
            ok(rle_event_new(device, false, &read));
            ok(rle_device_alloc_pinned(device, SIZE, &rows));
            assert_true((rows.pinned != NULL) == (device == dev));
            rle_memory_stats held = cpu_stats();
            size_t taken = SIZE + (device == cpu ? SIZE : 0);
            assert_int_equal(held.allocated - before.allocated, taken);
            assert_true(held.reserved - held.cached - (before.reserved - before.cached) >=
                        taken);
            for (unsigned round = 0; round < 3; round++) {
                ok(rle_event_synchronize(read));
                fill_bytes(rows.data, SIZE, round);
                ok(rle_pinned_copy_in(device, b.data, rows.data, SIZE));
                ok(rle_event_record(read, NULL));
                if (round < 2) continue;
                ok(device->copy_out(device, out, b.data, SIZE));
                assert_memory_equal(out, rows.data, SIZE);
            }
            ok(rle_pinned_copy_in(device, b.data, rows.data, 0));
            rle_device_free(cpu, &rows);
            rle_device_free(device, &b);
            rle_event_free(read);
            rle_memory_stats after = cpu_stats();
            assert_int_equal(after.allocated, before.allocated);
            assert_int_equal(after.blocks, before.blocks);
            assert_int_equal(after.reserved - after.cached,
                             before.reserved - before.cached);
        }
    }
    /* At the CPU's limit, and where the driver has none, an ordinary block is tried. */
    rle_block rows;
    rle_device_set_limit(cpu, 1);
    rle_device_empty_cache(cpu);
    assert_int_equal(rle_device_alloc_pinned(dev, SIZE, &rows), RLE_RESOURCE_EXHAUSTED);
    rle_device_set_limit(cpu, 0);
    if (dev->type != RLE_DEVICE_EMU) return;
    ok(rle_device_emu_control("fail_host=1"));
    ok(rle_device_alloc_pinned(dev, SIZE, &rows));
    assert_null(rows.pinned);
    rle_device_free(cpu, &rows);
}

static void events_take_the_time(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        rle_device *device = both()[d];
        rle_event *from, *to, *untimed;
        double seconds = -1;
        ok(rle_event_new(device, true, &from));
        ok(rle_event_new(device, true, &to));
        ok(rle_event_new(device, false, &untimed));
        assert_int_equal(rle_event_elapsed(from, to, &seconds), RLE_FAILED_PRECONDITION);
        assert_non_null(strstr(rle_message(), "never recorded"));
        assert_int_equal(rle_event_elapsed(from, untimed, &seconds),
                         RLE_FAILED_PRECONDITION);
        ok(rle_event_record(from, NULL));
        ok(rle_event_record(to, NULL));
        ok(rle_event_synchronize(to));
        ok(rle_event_elapsed(from, to, &seconds));
        assert_true(seconds >= 0 && seconds < 100);
        if (device->type == RLE_DEVICE_EMU) {
            ok(rle_device_emu_control("streams=lazy"));
            ok(rle_event_record(to, NULL));
            assert_int_equal(rle_event_elapsed(from, to, &seconds),
                             RLE_FAILED_PRECONDITION);
            ok(rle_device_emu_control("streams=eager"));
        }
        rle_event_free(from), rle_event_free(to), rle_event_free(untimed);
    }
}

static void devices_are_not_mixed(void **state)
{
    (void)state;
    rle_stream *s;
    rle_event *here, *there;
    double seconds;
    ok(rle_stream_new(cpu, &s));
    ok(rle_event_new(cpu, true, &here));
    ok(rle_event_new(dev, true, &there));
    assert_int_equal(rle_stream_wait(s, there), RLE_INVALID_ARGUMENT);
    assert_int_equal(rle_event_record(there, s), RLE_INVALID_ARGUMENT);
    assert_int_equal(rle_event_elapsed(here, there, &seconds), RLE_INVALID_ARGUMENT);
    rle_stream_free(s), rle_event_free(here), rle_event_free(there);
}

/* A block that a stream reads is freed, and another allocated: with rle_device_use_on it
 * is another place until the stream is done. */
static void a_block_in_use_is_not_given_away(void **state)
{
    (void)state;
    enum { N = 50000 };
    FOR_EACH_MODE(m)
    {
        rle_stream *side;
        rle_event *filled;
        float *host;
        ok(rle_stream_new(dev, &side));
        ok(rle_event_new(dev, false, &filled));
        ok(rle_pinned_alloc(dev, N * 4, (void **)&host));
        for (int round = 0; round < 5; round++) {
            rle_block b = block_of(dev, N * 4);
            rle_array a = floats(&b, N);
            ok(dev->ops->fill(dev, &a, round, round));
            ok(rle_event_record(filled, NULL));
            ok(rle_stream_wait(side, filled));
            ok(rle_stream_copy_out(side, host, b.data, N * 4));
            ok(rle_device_use_on(dev, &b, side));
            ok(rle_device_use_on(dev, &b, NULL)); /* its own stream: nothing to do */
            rle_device_free(dev, &b);
            rle_block next = block_of(dev, N * 4);
            rle_array an = floats(&next, N);
            ok(dev->ops->fill(dev, &an, 99, 99));
            ok(rle_device_synchronize(dev));
            ok(rle_stream_synchronize(side));
            for (int i = 0; i < N; i++) assert_true(host[i] == (float)round);
            rle_device_free(dev, &next);
        }
        rle_event_free(filled), rle_stream_free(side), rle_pinned_free(dev, host);
    }
    rle_block b = block_of(cpu, 100);
    rle_stream *s;
    ok(rle_stream_new(cpu, &s));
    ok(rle_device_use_on(cpu, &b, s));
    rle_stream_free(s);
    rle_device_free(cpu, &b);
}

/* ---- several devices ---- */

static void each_device_has_its_own(void **state)
{
    (void)state;
    rle_device *other;
    if (rle_device_get(dev->type == RLE_DEVICE_EMU ? "emu:1" : "cuda:1", 0, &other) !=
        RLE_OK)
        return;
    FOR_EACH_MODE(m)
    {
        rle_block a = block_of(dev, 400), b = block_of(other, 400);
        rle_array x = floats(&a, 100), y = floats(&b, 100);
        ok(dev->ops->fill(dev, &x, 1, 1));
        ok(other->ops->fill(other, &y, 2, 2));
        float got[100];
        ok(dev->copy_out(dev, got, a.data, 400));
        assert_true(got[0] == 1 && got[99] == 1);
        ok(other->copy_out(other, got, b.data, 400));
        assert_true(got[0] == 2 && got[99] == 2);
        ok(rle_device_synchronize(dev));
        ok(rle_device_synchronize(other));
        rle_device_free(dev, &a), rle_device_free(other, &b);
    }
    rle_device_empty_cache(other);
}

/* As the collector does that lets go of another device's tensors. */
static bool use_another(void *other, rle_device *device, size_t size)
{
    (void)device, (void)size;
    ok(rle_device_synchronize(other));
    return false;
}

static void room_is_made_with_another_device_and_used_on_this(void **state)
{
    (void)state;
    enum { MANY = 300000 };
    rle_device *other;
    rle_device_figures before, after;
    rle_memory_stats held, holds;
    if (rle_device_get(dev->type == RLE_DEVICE_EMU ? "emu:1" : "cuda:1", 0, &other) !=
        RLE_OK)
        return;
    rle_block b = block_of(dev, MANY * 4), v = block_of(dev, MANY * 4),
              i = block_of(dev, MANY * 8);
    rle_array x = floats(&b, MANY), y = floats(&v, MANY), at = floats(&i, MANY);
    float got;
    at.dtype = RLE_I64;
    ok(dev->ops->fill(dev, &x, 1, 1));
    rle_device_empty_cache(dev);
    ok(dev->figures(dev, &before));
    rle_device_memory(dev, &held);
    rle_device_on_pressure(use_another, other);
    rle_device_fault(1); /* the sort's working memory is refused once */
    ok(dev->ops->sort(dev, &y, &at, &x, 0, false));
    rle_device_on_pressure(NULL, NULL);
    ok(dev->figures(dev, &after));
    rle_device_memory(dev, &holds);
    assert_true(holds.workspace > held.workspace);
    assert_int_equal(holds.retries, held.retries + 1);
    if (dev->type == RLE_DEVICE_EMU) /* a GPU has other users */
        assert_int_equal(after.used - before.used, holds.workspace - held.workspace);
    ok(dev->copy_out(dev, &got, v.data, 4));
    assert_true(got == 1);
    rle_device_free(dev, &b), rle_device_free(dev, &v), rle_device_free(dev, &i);
}

static void a_device_says_what_it_is(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        rle_device_properties p;
        ok(rle_device_get_properties(both()[d], &p));
        assert_true(p.name[0] && p.multiprocessors >= 1 && p.memory > 0);
        if (both()[d] == cpu) continue;
        assert_true(p.major >= 5 && p.minor >= 0);
        assert_true(p.shared_memory >= 48 << 10);
        assert_true(p.driver >= 12000 && p.runtime >= 12000);
    }
}

/* ---- errors ---- */

#define assert_fails(call, says)                                                         \
    do {                                                                                 \
        assert_int_not_equal(call, RLE_OK);                                              \
        if (!strstr(rle_message(), says))                                                \
            fail_msg("\"%s\" does not say \"%s\"", rle_message(), says);                 \
    } while (0)

static void errors_name_the_operation(void **state)
{
    (void)state;
    if (dev->type != RLE_DEVICE_EMU) return;
    rle_block b = block_of(dev, 4000);
    rle_array a = floats(&b, 1000);
    static float host[1 << 18];
    rle_block big = block_of(dev, sizeof host);
    rle_stream *s;
    rle_event *e, *to;
    void *p;
    bool done;
    double seconds;
    rle_device_figures figures;
    rle_device_properties properties;
    rle_device *other;
    ok(rle_stream_new(dev, &s));
    ok(rle_event_new(dev, true, &e));
    ok(rle_event_new(dev, true, &to));
    ok(rle_event_record(e, NULL));
    ok(rle_event_record(to, NULL));
#define with(setting, call, says)                                                        \
    ok(rle_device_emu_control(setting));                                                 \
    assert_fails(call, says)
    with("fail_launch=1:701", dev->ops->fill(dev, &a, 1, 1),
         "emu:0: fill: too many resources requested for launch (CUDA error 701)");
    with("fail_copy=1", dev->copy_in(dev, b.data, host, 4000),
         "emu:0: copy to the device: ");
    with("fail_copy=1", dev->copy_in(dev, big.data, host, sizeof host),
         "copy to the device: invalid argument (CUDA error 1)");
    with("fail_copy=1", dev->copy_out(dev, host, b.data, 4000), "copy from the device: ");
    with("fail_wait=1", dev->copy_out(dev, host, b.data, 4000), "copy from the device: ");
    with("fail_wait=1", dev->copy_in(dev, big.data, host, sizeof host),
         "copy to the device: ");
    with("fail_event=1", dev->copy_in(dev, b.data, host, 4000), "wait for a copy: ");
    with("fail_event=2", dev->copy_in(dev, b.data, host, 4000), "copy to the device: ");
    with("fail_event=1", dev->copy_out(dev, host, b.data, 4000), "wait for a copy: ");
    ok(dev->ops->fill(dev, &a, 1, 1));
    with("fail_wait=1", rle_device_synchronize(dev), "emu:0: synchronize: unknown error");
    with("fail_info=1", dev->figures(dev, &figures), "memory info: ");
    with("fail_stream=1", rle_stream_new(dev, &s), "create a stream: out of memory");
    with("fail_wait=1", rle_stream_synchronize(s), "unknown error");
    with("fail_host=1", rle_pinned_alloc(dev, 4, &p), "page-locked memory: ");
    with("fail_event=1", rle_event_new(dev, false, &e), "create an event: ");
    with("fail_event=1", rle_event_record(e, s), "record an event: ");
    with("fail_event=1", rle_device_use_on(dev, &b, s), "create an event: ");
    with("fail_event=2", rle_device_use_on(dev, &b, s), "record an event: ");
    with("fail_event=1", rle_event_synchronize(e), "out of memory");
    with("fail_event=1", rle_event_query(e, &done), "out of memory");
    with("fail_event=1", rle_stream_wait(s, e), "wait for an event: ");
    with("fail_event=1", rle_event_elapsed(e, to, &seconds), "time between events: ");
    with("fail_device=1", rle_device_get_properties(dev, &properties), "device 0: ");
    ok(dev->ops->fill(dev, &a, 1, 1)); /* that one hears of it no more */
    with("fail_count=1", rle_device_get("emu", 0, &other), "finds no GPU");
    ok(dev->ops->fill(dev, &a, 1, 1));
    with("fail_copy=1", rle_stream_copy_in(s, b.data, host, 4), "copy to the device: ");
    with("fail_copy=1", rle_stream_copy_out(s, host, b.data, 4),
         "copy from the device: ");
    /* What the emulation knows more. */
    assert_fails(dev->copy_out(dev, host, host, 4),
                 "is host memory, the kind says device");
    assert_fails(dev->copy_in(dev, (char *)b.data + (1 << 30), host, 4), "destination");
    /* Nothing of that lasts. */
    ok(dev->ops->fill(dev, &a, 1, 1));
    ok(rle_device_synchronize(dev));
    rle_event_free(e), rle_event_free(to), rle_stream_free(s);
    rle_device_free(dev, &b), rle_device_free(dev, &big);
}

static void a_device_that_does_not_open_leaves_nothing(void **state)
{
    (void)state;
    if (dev->type != RLE_DEVICE_EMU) return;
    rle_device *third;
    static const struct {
        const char *setting, *says;
    } c[] = {
        {"fail_count=1:35", "no NVIDIA driver, or one older than CUDA 13.0 needs"},
        {"fail_count=1:100", "the NVIDIA driver finds no GPU (CUDA error 100)"},
        {"fail_count=1:999", "CUDA does not start: unknown error (CUDA error 999)"},
        {"fail_device=1", "emu:2: select the device: invalid device ordinal"},
        {"fail_stream=1:46", "emu:2: create a stream: GPU 2 is busy or closed"},
        {"fail_stream=1", "emu:2: create a stream: "},
        {"fail_host=1", "emu:2: page-locked memory: "},
        {"fail_event=3", "emu:2: create an event: "},
        {"fail_info=1", "emu:2: memory info: "},
    };
    int before = rle_device_count();
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        size_t bytes = rle_mem_bytes();
        ok(rle_device_emu_control(c[i].setting));
        assert_fails(rle_device_get("emu:2", 0, &third), c[i].says);
        assert_int_equal(rle_device_count(), before);
        assert_int_equal(rle_mem_bytes(), bytes);
    }
    ok(rle_device_emu_control("fail_stream=1:46"));
    assert_int_equal(rle_device_get("emu:2", 0, &third), RLE_UNAVAILABLE);
    ok(rle_device_get("emu:2", 0, &third));
    assert_int_equal(rle_device_count(), before + 1);
}

/* An allocation that the driver refuses once succeeds after room was made. */
static void an_ordered_refusal_is_survived(void **state)
{
    (void)state;
    rle_memory_stats before, after;
    rle_device_empty_cache(dev);
    rle_device_memory(dev, &before);
    rle_device_fault(1);
    rle_block b = block_of(dev, 1000);
    rle_device_memory(dev, &after);
    assert_int_equal(after.from_driver, before.from_driver + 2);
    assert_int_equal(after.refused, before.refused);
    rle_device_free(dev, &b);
    rle_device_empty_cache(dev);
    rle_device_fault(2);
    b = block_of(dev, 1000);
    rle_device_fault(0);
    rle_device_free(dev, &b);
    if (dev->type != RLE_DEVICE_EMU) return;
    rle_device_empty_cache(dev);
    ok(rle_device_emu_control("fail_malloc=1"));
    b = block_of(dev, 1000);
    rle_device_free(dev, &b);
}

static int setup(void **state)
{
    setenv("RLENGINE_EMU", "devices=3", 0);
    return device_setup(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_of_any_size_arrive),
        cmocka_unit_test(a_slot_is_not_reused_before_it_was_read),
        cmocka_unit_test(streams_copy_in_the_order_that_events_say),
        cmocka_unit_test(pinned_blocks_are_the_cpus_and_read_by_the_device),
        cmocka_unit_test(events_take_the_time),
        cmocka_unit_test(devices_are_not_mixed),
        cmocka_unit_test(a_block_in_use_is_not_given_away),
        cmocka_unit_test(each_device_has_its_own),
        cmocka_unit_test(room_is_made_with_another_device_and_used_on_this),
        cmocka_unit_test(a_device_says_what_it_is),
        cmocka_unit_test(errors_name_the_operation),
        cmocka_unit_test(a_device_that_does_not_open_leaves_nothing),
        cmocka_unit_test(an_ordered_refusal_is_survived),
    };
    return cmocka_run_group_tests_name("device streams", tests, setup, device_finish);
}
