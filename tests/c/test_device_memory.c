/* test_device_memory.c - memory of every kind of device, with random sizes and lifetimes:
 * blocks on the CPU, segments on a device of host memory (memory_host.h), and on the
 * emulated one. Then segments in detail, and blocks that other streams still use. */
#include "memory_host.h"

/* ---- random sizes and lifetimes ---- */

static uint64_t random_state;

static uint64_t random_word(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static size_t below(size_t n)
{
    return random_word() % n;
}

static size_t small_sizes(void)
{
    return below(random_word() % 16 ? 5000 : 300000);
}
/* As many of each order of magnitude: 16 bytes to 16 MiB. */
static size_t all_magnitudes(void)
{
    size_t top = (size_t)16 << below(20);
    return top + below(top);
}
/* Networks: few sizes, again and again. */
static size_t few_sizes(void)
{
    static const size_t size[] = {16, 1024, 2048, 4096, 65536, 262144, 1 << 20, 4 << 20};
    return size[below(8)];
}
static size_t large_sizes(void)
{
    return MIB + below(24 * MIB);
}

/* AddressSanitizer's malloc takes its time for large blocks: fewer of them there. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(SANITIZED)
enum { FEWER = 100 };
#else
enum { FEWER = 1 };
#endif

enum { SLOTS = 768 };

typedef struct workload {
    const char *name;
    size_t (*size)(void);
    int slots, operations;
} workload;

static const workload workloads[] = {
    {"small sizes", small_sizes, SLOTS, 1000000},
    {"all magnitudes", all_magnitudes, SLOTS, 1000000},
    {"few sizes", few_sizes, SLOTS, 300000},
    {"large sizes", large_sizes, 128, 200000},
};

/* Each block of host memory carries its slot at both ends: blocks never overlap. */
static void sign(rle_block *b, uint32_t slot)
{
    if (b->size < 8) return;
    memcpy(b->data, &slot, 4);
    memcpy((char *)b->data + b->size - 4, &slot, 4);
}

static void check_signature(const rle_block *b, uint32_t slot)
{
    if (b->size < 8) return;
    assert_memory_equal(b->data, &slot, 4);
    assert_memory_equal((char *)b->data + b->size - 4, &slot, 4);
}

static void random_life(rle_device *dev, const workload *w, bool readable)
{
    static rle_block block[SLOTS];
    size_t live = 0, peak = 0;
    uint64_t refused = stats_of(dev).refused;
    random_state = 88172645463325252u;
    for (int i = 0; i < w->operations / FEWER; i++) {
        uint32_t slot = (uint32_t)below((size_t)w->slots);
        rle_block *b = &block[slot];
        if (b->data) {
            if (readable) check_signature(b, slot);
            live -= b->size;
            rle_device_free(dev, b);
        } else {
            *b = block_of(dev, w->size());
            assert_int_equal((uintptr_t)b->data % (b->piece ? 256 : 64), 0);
            assert_true(b->reserved >= b->size);
            if (readable) sign(b, slot);
            live += b->size;
        }
        if (live > peak) peak = live;
    }
    rle_memory_stats s = stats_of(dev);
    assert_int_equal(s.allocated, live);
    assert_int_equal(s.refused, refused);
    rle_device_empty_cache(dev);
    s = stats_of(dev);
    if (FEWER == 1 && s.reserved - s.workspace > peak + peak / 4)
        fail_msg("%s, %s: %zu bytes reserved, at most %zu were live", dev->name, w->name,
                 s.reserved - s.workspace, peak);
    for (int i = 0; i < w->slots; i++)
        if (block[i].data) rle_device_free(dev, &block[i]);
    rle_device_empty_cache(dev);
    s = stats_of(dev);
    assert_int_equal(s.allocated, 0);
    assert_int_equal(s.reserved, s.workspace);
    assert_int_equal(s.cached, 0);
    assert_int_equal(s.blocks, 0);
    assert_int_equal(s.allocations, s.frees);
    assert_int_equal(rle_device_report(dev, NULL, 0), 0);
}

static void blocks_of_the_cpu(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof workloads / sizeof *workloads; i++)
        random_life(rle_device_cpu(), &workloads[i], true);
}

static void pieces_of_host_memory(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof workloads / sizeof *workloads; i++) {
        random_life(&host, &workloads[i], true);
        assert_int_equal(driver.used, 0);
    }
}

static void pieces_of_the_device(void **state)
{
    (void)state;
    const char *name = getenv("RLENGINE_TEST_DEVICE");
    rle_device *dev;
    if (rle_device_get(name && *name ? name : "emu", 0, &dev) != RLE_OK)
        fail_msg("%s", rle_message());
    const workload w = {"small sizes", small_sizes, SLOTS, 200000};
    random_life(dev, &w, false);
}

/* ---- pieces ---- */

static void the_driver_is_asked_for_segments(void **state)
{
    (void)state;
    rle_block a = block_of(&host, 4), b = block_of(&host, MIB);
    assert_string_equal(driver.log, "take 2; ");
    assert_int_equal(a.reserved, 512);
    rle_block c = block_of(&host, MIB + 1), d = block_of(&host, 10 * MIB);
    assert_string_equal(driver.log, "take 2; take 20; ");
    rle_block e = block_of(&host, 10 * MIB + 1);
    assert_string_equal(driver.log, "take 2; take 20; take 12; ");
    assert_int_equal(stats_of(&host).reserved, 34 * MIB);
    assert_int_equal(stats_of(&host).reserved, driver.used);
    assert_int_equal(stats_of(&host).from_driver, 3);
    assert_int_equal(stats_of(&host).cached, 34 * MIB - a.reserved - b.reserved -
                                                 c.reserved - d.reserved - e.reserved);
    rle_device_free(&host, &b);
    rle_device_free(&host, &e);
    assert_int_equal(rle_device_empty_cache(&host), 12 * MIB);
    rle_device_free(&host, &a);
    rle_device_free(&host, &c);
    rle_device_free(&host, &d);
    assert_int_equal(rle_device_empty_cache(&host), 22 * MIB);
    assert_int_equal(driver.used, 0);
}

static void the_smallest_hole_is_taken_and_holes_merge(void **state)
{
    (void)state;
    rle_block big = block_of(&host, 64 << 10), wall = block_of(&host, 512);
    rle_block fits = block_of(&host, 16 << 10), wall2 = block_of(&host, 512);
    char *hole = fits.data, *start = big.data;
    rle_device_free(&host, &big);
    rle_device_free(&host, &fits);
    rle_block a = block_of(&host, 15 << 10);
    assert_ptr_equal(a.data, hole); /* not the first, larger one */
    rle_device_free(&host, &a);
    rle_device_free(&host, &wall); /* 64 KiB + 512 + 16 KiB in one */
    rle_block b = block_of(&host, (80 << 10) + 512);
    assert_ptr_equal(b.data, start);
    rle_device_free(&host, &b);
    rle_device_free(&host, &wall2);
    assert_int_equal(rle_device_largest_free(&host), 2 * MIB);
    assert_int_equal(stats_of(&host).from_driver, 1);
}

static void the_steady_state_asks_nothing_of_the_driver(void **state)
{
    (void)state;
    uint64_t asked = 0;
    for (int episode = 0; episode < 50; episode++) {
        rle_block held[200];
        for (int i = 0; i < 200; i++)
            held[i] = block_of(&host, (size_t)(i * 7919) % 65536);
        for (int i = 0; i < 200; i++) rle_device_free(&host, &held[(i * 37) % 200]);
        if (episode == 0) asked = stats_of(&host).from_driver;
    }
    assert_int_equal(stats_of(&host).from_driver, asked);
}

static void a_full_device_gives_its_last_piece(void **state)
{
    (void)state;
    driver.capacity = 8 * MIB;
    rle_block a = block_of(&host, 5 * MIB); /* 20 MiB are refused, 6 are not */
    assert_string_equal(driver.log, "take 20; take 6; ");
    rle_block b = block_of(&host, MIB), c = block_of(&host, MIB);
    rle_block d = block_of(&host, MIB); /* from the large segment's rest */
    assert_int_equal(stats_of(&host).cached, 0);
    assert_int_equal(stats_of(&host).retries, 1);
    rle_block e;
    assert_int_equal(rle_device_alloc(&host, 1, &e), RLE_RESOURCE_EXHAUSTED);
    rle_device_free(&host, &b);
    rle_device_free(&host, &c); /* two MiB in one piece, of the small pool */
    rle_block f = block_of(&host, 3 * MIB / 2);
    rle_device_free(&host, &a);
    rle_device_free(&host, &d);
    rle_device_free(&host, &f);
}

static void the_limit_holds_to_the_byte(void **state)
{
    (void)state;
    rle_device_set_limit(&host, 8 * MIB);
    rle_block held[64];
    int n = 0;
    while (n < 64 && rle_device_alloc(&host, MIB / 2, &held[n]) == RLE_OK) n++;
    assert_int_equal(n, 16);
    assert_int_equal(stats_of(&host).reserved, 8 * MIB);
    assert_true(driver.used <= 8 * MIB);
    while (n) rle_device_free(&host, &held[--n]);
    rle_block a = block_of(&host, 7 * MIB); /* the cache gives way */
    assert_true(stats_of(&host).reserved <= 8 * MIB);
    assert_int_equal(stats_of(&host).retries, 1);
    rle_device_free(&host, &a);
    rle_device_set_limit(&host, 0);
}

/* ---- blocks that another stream still uses ---- */

static void a_guarded_block_is_reused_only_when_the_work_is_over(void **state)
{
    (void)state;
    work w = {0}, other = {0};
    rle_block a = block_of(&host, 2 * MIB), b;
    char *place = a.data;
    assert_int_equal(rle_device_guard(&host, &a, work_ready, &w), RLE_OK);
    assert_int_equal(rle_device_guard(&host, &a, work_ready, &other), RLE_OK);
    rle_device_free(&host, &a);
    assert_int_equal(stats_of(&host).allocated, 0);
    b = block_of(&host, 2 * MIB);
    assert_ptr_not_equal(b.data, place);
    rle_block rest = block_of(&host, 16 * MIB); /* so that nothing else is free */
    other.over = true;
    rle_block c = block_of(&host, 2 * MIB);
    assert_ptr_not_equal(c.data, place);
    w.over = true;
    rle_device_free(&host, &rest);
    rle_block all = block_of(&host, 14 * MIB), d = block_of(&host, 2 * MIB);
    rle_device_empty_cache(&host); /* settles what is over */
    assert_true(w.gone && other.gone);
    assert_int_equal(w.waited + other.waited, 0);
    rle_block e = block_of(&host, 2 * MIB);
    assert_ptr_equal(e.data, place);
    rle_block *live[] = {&b, &c, &all, &d, &e};
    for (size_t i = 0; i < 5; i++) rle_device_free(&host, live[i]);
}

static void a_guard_on_the_cpu_waits_at_once(void **state)
{
    (void)state;
    work w = {0};
    rle_block a = block_of(rle_device_cpu(), 100);
    assert_int_equal(rle_device_guard(rle_device_cpu(), &a, work_ready, &w), RLE_OK);
    assert_int_equal(w.waited, 1);
    rle_device_free(rle_device_cpu(), &a);
}

static void guards_left_at_the_end_are_waited_for(void **state)
{
    (void)state;
    work w = {0};
    rle_block a = block_of(&host, 100);
    assert_int_equal(rle_device_guard(&host, &a, work_ready, &w), RLE_OK);
    rle_device_free(&host, &a);
    rle_allocator_free(&host);
    assert_int_equal(w.waited, 1);
    assert_int_equal(driver.used, 0);
    assert_int_equal(rle_allocator_new(true, &host.allocator), RLE_OK);
}

/* ---- the engine's own memory ---- */

static void the_engines_own_memory_fails_softly(void **state)
{
    (void)state;
    for (uint64_t nth = 1; nth < 40; nth++) {
        rle_block a = {0}, b = {0};
        work w = {0};
        rle_mem_fault(nth, nth % 2);
        at_line((int)(1000 + nth));
        bool ok = rle_device_alloc(&host, 100 * nth, &a) == RLE_OK;
        if (ok && rle_device_guard(&host, &a, work_ready, &w) != RLE_OK)
            work_ready(&w, true);
        bool more = rle_device_alloc(&host, 3 * MIB, &b) == RLE_OK;
        rle_mem_fault(0, false);
        w.over = true;
        if (ok) rle_device_free(&host, &a);
        rle_device_empty_cache(&host);
        if (more) rle_device_free(&host, &b);
    }
    at_line(0);
    rle_block c = block_of(&host, 100);
    rle_device_free(&host, &c);
}

/* Structs of pieces come and go with the pieces. */
static void nothing_stays_behind(void **state)
{
    (void)state;
    rle_allocator_free(&host);
    assert_int_equal(rle_mem_bytes(), bytes_before);
    assert_int_equal(rle_allocator_new(true, &host.allocator), RLE_OK);
    enum { MANY = 3000 };
    static rle_block many[MANY];
    size_t before = rle_mem_bytes();
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < MANY; i++) many[i] = block_of(&host, 700);
        for (int i = 0; i < MANY; i++) rle_device_free(&host, &many[i]);
        rle_device_empty_cache(&host);
        assert_int_equal(rle_mem_bytes(), before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HOST_TEST(nothing_stays_behind),
        cmocka_unit_test(blocks_of_the_cpu),
        HOST_TEST(pieces_of_host_memory),
        cmocka_unit_test(pieces_of_the_device),
        HOST_TEST(the_driver_is_asked_for_segments),
        HOST_TEST(the_smallest_hole_is_taken_and_holes_merge),
        HOST_TEST(the_steady_state_asks_nothing_of_the_driver),
        HOST_TEST(a_full_device_gives_its_last_piece),
        HOST_TEST(the_limit_holds_to_the_byte),
        HOST_TEST(a_guarded_block_is_reused_only_when_the_work_is_over),
        cmocka_unit_test(a_guard_on_the_cpu_waits_at_once),
        HOST_TEST(guards_left_at_the_end_are_waited_for),
        HOST_TEST(the_engines_own_memory_fails_softly),
    };
    return cmocka_run_group_tests_name("device_memory", tests, NULL, NULL);
}
