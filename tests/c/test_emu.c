/* test_emu.c - the promises of the emulated device about kernels: threads of a block work
 * together, orders differ, what is wrong is found and named. */
#include "emu_check.h"

#include <sys/wait.h>

static const char *program;

static const char *const orders[] = {"order=forward", "order=reverse", "order=random"};

/* ---- threads ---- */

static void kernels_give_the_same_in_every_order(void **state)
{
    (void)state;
    enum { BLOCKS = 7, N = 1000 };
    static float in[BLOCKS * N], out[BLOCKS];
    for (int i = 0; i < BLOCKS * N; i++) in[i] = (float)(i % 13);
    int numbers[256], got[256];
    for (int i = 0; i < 256; i++) numbers[i] = i * i;
    for (int o = 0; o < 3; o++) {
        control(orders[o]);
        float *din = on_device(in, sizeof in), *dout = on_device(NULL, sizeof out);
        assert_ok(k_sum(dout, din, BLOCKS, N, true, NULL));
        fetch(out, dout, sizeof out);
        for (int b = 0; b < BLOCKS; b++) {
            float want = 0;
            for (int i = 0; i < N; i++) want += in[b * N + i];
            assert_true(out[b] == want);
        }
        int *data = on_device(numbers, sizeof numbers);
        assert_ok(k_rotate(data, 256, 9, true, NULL));
        fetch(got, data, sizeof got);
        for (int i = 0; i < 256; i++) assert_int_equal(got[i], numbers[(i + 9) % 256]);
        assert_ok(cudaMemcpy(data, numbers, 128, cudaMemcpyHostToDevice));
        assert_ok(k_rotate_warp(data, 9, true, NULL));
        fetch(got, data, 128);
        for (int i = 0; i < 32; i++) assert_int_equal(got[i], numbers[(i + 9) % 32]);
        cudaFree(din), cudaFree(dout), cudaFree(data);
    }
}

static void a_missing_barrier_changes_the_result(void **state)
{
    (void)state;
    static float in[1000], out;
    int numbers[256], got[256];
    for (int i = 0; i < 1000; i++) in[i] = 1;
    for (int i = 0; i < 256; i++) numbers[i] = i * i;
    float *din = on_device(in, sizeof in), *dout = on_device(NULL, sizeof out);
    int *data = on_device(numbers, sizeof numbers);
    int sums = 0, rotations = 0, warps = 0;
    for (int o = 0; o < 3; o++) {
        control(orders[o]);
        assert_ok(k_sum(dout, din, 1, 1000, false, NULL));
        fetch(&out, dout, sizeof out);
        sums += out != 1000;
        assert_ok(cudaMemcpy(data, numbers, sizeof numbers, cudaMemcpyHostToDevice));
        assert_ok(k_rotate(data, 256, 9, false, NULL));
        fetch(got, data, sizeof got);
        bool same = true;
        for (int i = 0; i < 256; i++) same = same && got[i] == numbers[(i + 9) % 256];
        rotations += !same;
        assert_ok(cudaMemcpy(data, numbers, 128, cudaMemcpyHostToDevice));
        assert_ok(k_rotate_warp(data, 9, false, NULL));
        fetch(got, data, 128);
        same = true;
        for (int i = 0; i < 32; i++) same = same && got[i] == numbers[(i + 9) % 32];
        warps += !same;
    }
    assert_true(sums >= 2); /* in reverse the threads that are read have all run */
    assert_true(rotations == 3);
    assert_true(warps == 3);
    cudaFree(din), cudaFree(dout), cudaFree(data);
}

static void orders_differ(void **state)
{
    (void)state;
    enum { BLOCKS = 2 * 3 * 2, THREADS = 4 * 2 * 2, N = BLOCKS * THREADS };
    unsigned got[3][N], other[N], zero = 0;
    unsigned *out = on_device(NULL, sizeof got[0]), *counter = on_device(NULL, 4);
    dim3_c blocks = {2, 3, 2}, threads = {4, 2, 2};
    for (int o = 0; o < 4; o++) {
        control(orders[o < 3 ? o : 2]);
        control(o == 3 ? "seed=99" : "seed=1");
        assert_ok(cudaMemcpy(counter, &zero, 4, cudaMemcpyHostToDevice));
        assert_ok(k_order(out, counter, blocks, threads, NULL));
        fetch(o < 3 ? got[o] : other, out, sizeof other);
    }
    bool seen[N] = {false};
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(got[0][i], i);
        assert_int_equal(got[1][i], N - 1 - i);
        assert_false(seen[got[2][i]]);
        seen[got[2][i]] = true;
    }
    assert_memory_not_equal(got[2], got[0], sizeof other);
    assert_memory_not_equal(got[2], got[1], sizeof other);
    assert_memory_not_equal(got[2], other, sizeof other);
    cudaFree(out), cudaFree(counter);
}

static void shared_memory_holds_nothing_when_a_block_starts(void **state)
{
    (void)state;
    unsigned got[4 * 5], *out = on_device(NULL, sizeof got);
    for (int round = 0; round < 2; round++) {
        assert_ok(k_unwritten(out, 5, NULL));
        fetch(got, out, sizeof got);
        for (int i = 0; i < 4 * 5; i++) assert_int_equal(got[i], 0xffffffffu);
    }
    cudaFree(out);
}

static void warps_exchange(void **state)
{
    (void)state;
    enum { ROWS = 17 };
    for (int o = 0; o < 3; o++) {
        control(orders[o]);
        unsigned got[ROWS][32], *out = on_device(NULL, sizeof got);
        assert_ok(k_warp(out, NULL));
        fetch(got, out, sizeof got);
        unsigned thirds = 0;
        for (unsigned l = 0; l < 32; l += 3) thirds |= 1u << l;
        for (unsigned l = 0; l < 32; l++) {
            unsigned want[ROWS] = {105,
                                   102 + l / 8 * 8,
                                   l + 4 < 32 ? 104 + l : 100 + l,
                                   l % 16 >= 4 ? 96 + l : 100 + l,
                                   100 + (l ^ 1),
                                   (l ^ 24) / 8 <= l / 8 ? 100 + (l ^ 24) : 100 + l,
                                   l + 1 < 32 ? 101 + l : 100 + l,
                                   thirds,
                                   1,
                                   0,
                                   1,
                                   0,
                                   0xfu << l / 4 * 4,
                                   7,
                                   1,
                                   0,
                                   l < 16 ? 0x0000aaaau : 0xaaaa0000u};
            for (int r = 0; r < ROWS; r++)
                if (got[r][l] != want[r])
                    fail_msg("%s, row %d, lane %u: %x, not %x", orders[o], r, l,
                             got[r][l], want[r]);
        }
        cudaFree(out);
    }
}

static void lanes_that_are_gone_give_a_pattern(void **state)
{
    (void)state;
    unsigned got[96], *out = on_device(NULL, sizeof got);
    assert_ok(k_warp_partial(out, NULL));
    fetch(got, out, sizeof got);
    for (unsigned l = 0; l < 24; l++) {
        assert_int_equal(got[l], l < 16 ? l + 8 : 0x7fc0deadu);
        assert_int_equal(got[64 + l], 0x00ffffffu);
        if (l < 8) assert_int_equal(got[32 + l], 0x7fc0deadu);
    }
    cudaFree(out);
}

static void atomics_update(void **state)
{
    (void)state;
    struct {
        int add, least, most, last, swapped;
        unsigned uadd, uleast, umost, all_bits, any_bits, odd_bits;
        unsigned long long wide_add, wide_least, wide_most, wide_swapped;
        long long sleast, smost;
        float fadd;
        double dadd;
    } w;
    memset(&w, 0, sizeof w);
    w.uleast = w.all_bits = 0xffffffffu;
    w.wide_least = ~0ull;
    void *p = on_device(&w, sizeof w);
    assert_ok(k_atomics(p, NULL));
    fetch(&w, p, sizeof w);
    assert_int_equal(w.add, 255 * 128);
    assert_int_equal(w.least, -100);
    assert_int_equal(w.most, 155);
    assert_int_equal(w.swapped, 1);
    assert_int_equal(w.last, 0);
    assert_int_equal(w.uadd, 255 * 128);
    assert_int_equal(w.uleast, 3);
    assert_int_equal(w.umost, 258);
    assert_int_equal(w.all_bits, 0xf00);
    assert_int_equal(w.any_bits, 255);
    assert_int_equal(w.odd_bits, 0);
    assert_true(w.wide_add == (256ull << 40) + 255 * 128);
    assert_true(w.wide_least == 7 && w.wide_most == 262 && w.wide_swapped == 256);
    assert_true(w.sleast == -250 && w.smost == 5);
    assert_true(w.fadd == 128 && w.dadd == 64);
    cudaFree(p);
}

static void intrinsics_are_right(void **state)
{
    (void)state;
    int got[K_INTRINSICS], *out = on_device(NULL, sizeof got);
    assert_ok(k_intrinsics(out, NULL));
    fetch(got, out, sizeof got);
    for (int i = 0; i < K_INTRINSICS; i++)
        if (got[i] != 1) fail_msg("intrinsic %d", i);
    cudaFree(out);
}

/* ---- mistakes in kernels ---- */

static void mistakes_end_the_kernel_and_are_named(void **state)
{
    (void)state;
    static const struct {
        int threads, error;
        bool signal; /* found by one: AddressSanitizer takes those */
        const char *says;
    } want[WRONG_COUNT] = {
        [WRONG_DIVERGE] = {64, 719, false, "threads diverge: "},
        [WRONG_RETURN_FIRST] = {64, 719, false, "__syncthreads"},
        [WRONG_RETURN_LAST] = {64, 719, false, "__syncthreads"},
        [WRONG_LANE_AWAY] = {32, 719, false, "deadlock: lanes "},
        [WRONG_NOT_IN_MASK] = {32, 719, false, "is not in the mask"},
        [WRONG_MASKS] = {32, 719, false, "lanes of a warp diverge"},
        [WRONG_WARP_LINES] = {32, 719, false, "lanes of a warp diverge"},
        [WRONG_BEYOND] = {64, 700, true, "nothing is at address"},
        [WRONG_NULL] = {64, 700, true, "nothing is at address"},
        [WRONG_DIVIDE] = {64, 719, true, "divided by zero"},
        [WRONG_STACK] = {64, 714, true, "its stack is full"},
        [WRONG_DYNAMIC] = {64, 700, true, "nothing is at address"},
    };
    static const char *const first_block[] = {"block (0,0,0)", "block (2,0,0)",
                                              "block ("};
    for (int kind = 0; kind < WRONG_COUNT; kind++) {
        if (want[kind].signal && WITH_ASAN) continue;
        for (int o = 0; o < 3; o++) {
            control(orders[o]);
            int *out = on_device(NULL, 4096);
            k_wrong((wrong_kind)kind, out, want[kind].threads, NULL);
            int error = cudaDeviceSynchronize();
            if (error != want[kind].error)
                fail_msg("mistake %d: error %d, not %d", kind, error, want[kind].error);
            assert_says(want[kind].says);
            assert_says("kernel wrong, block (");
            assert_says(first_block[o]);
            if (!want[kind].signal && kind != WRONG_NOT_IN_MASK)
                assert_says("emu_kernels.cu:");
            /* Nothing works any more, and it is always the same error. */
            void *p;
            assert_int_equal(cudaMalloc(&p, 4), error);
            assert_int_equal(cudaFree(out), error);
            assert_int_equal(cudaGetLastError(), error);
            assert_int_equal(cudaGetLastError(), error);
            assert_says(want[kind].says);
            control("reset");
            assert_ok(cudaFree(out));
        }
    }
    /* And afterwards all is well. */
    unsigned *out = on_device(NULL, 17 * 128), got;
    assert_ok(k_warp(out, NULL));
    fetch(&got, out, 4);
    assert_int_equal(got, 105);
    cudaFree(out);
}

/* Run this program with an argument that makes it die; what it wrote, and how it ended.
 */
static int dies(const char *how, char *text, size_t size)
{
    int pipe_ends[2];
    assert_int_equal(pipe(pipe_ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(pipe_ends[1], 2);
        execl(program, program, how, (char *)NULL);
        _exit(127);
    }
    close(pipe_ends[1]);
    size_t n = 0;
    ssize_t got;
    while (n + 1 < size && (got = read(pipe_ends[0], text + n, size - 1 - n)) > 0)
        n += (size_t)got;
    text[n] = 0;
    close(pipe_ends[0]);
    int status;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void the_byte_behind_a_block_is_seen_under_asan(void **state)
{
    (void)state;
    static char text[16384];
    int code = dies("overrun", text, sizeof text);
    if (!WITH_ASAN) {
        assert_int_equal(code, 0); /* within 256 bytes */
        return;
    }
    assert_true(code != 0);
    assert_non_null(strstr(text, "AddressSanitizer"));
    assert_non_null(strstr(text, "emu_kernels.cu"));
}

static void device_memory_is_closed_to_the_host(void **state)
{
    (void)state;
    static char text[16384];
    if (!rle_emu_guarded()) return;
    assert_true(dies("touch", text, sizeof text) != 0);
    assert_int_equal(dies("touch-open", text, sizeof text), 0);
}

static void a_kernel_cannot_reach_another_device(void **state)
{
    (void)state;
    int *there, *here = on_device(NULL, 4);
    assert_ok(cudaSetDevice(1));
    there = on_device(NULL, 4);
    assert_ok(cudaSetDevice(0));
    assert_int_equal(cudaMemcpy(here, there, 4, cudaMemcpyDeviceToDevice),
                     cudaErrorInvalidValue);
    assert_says("source");
    assert_says("memory of device 1");
    assert_int_equal(cudaMemset(there, 0, 4), cudaErrorInvalidValue);
    int five = 5, got;
    assert_ok(cudaMemcpy(here, &five, 4, cudaMemcpyHostToDevice));
    assert_ok(cudaMemcpyPeerAsync(there, 1, here, 0, 4, NULL));
    assert_ok(cudaDeviceSynchronize());
    assert_int_equal(cudaMemcpyPeerAsync(there, 0, here, 0, 4, NULL),
                     cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpyPeerAsync(there, 2, here, 0, 4, NULL),
                     cudaErrorInvalidDevice);
    assert_ok(cudaSetDevice(1));
    fetch(&got, there, 4);
    assert_int_equal(got, 5);
    assert_ok(cudaSetDevice(0));
    if (rle_emu_guarded() && !WITH_ASAN) {
        k_read(here, there, NULL);
        assert_int_equal(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
        assert_says("is of device 1, the kernel runs on device 0");
        assert_ok(cudaSetDevice(1)); /* which knows nothing of it */
        fetch(&got, there, 4);
        control("reset");
    }
    cudaFree(here), cudaFree(there);
}

/* ---- what this program does when it is told to die ---- */

static int die(const char *how)
{
    int *p;
    if (cudaMalloc((void **)&p, 100) != cudaSuccess) return 2;
    if (strcmp(how, "overrun") == 0) return (int)k_add(p, 26, 1, NULL);
    if (strcmp(how, "touch-open") == 0) rle_emu_control("guard=off");
    if (cudaMemset(p, 0, 4) != cudaSuccess) return 2;
    return *(volatile int *)p;
}

int main(int argc, char **argv)
{
    program = argv[0];
    if (argc > 1) return die(argv[1]);
    if (rle_emu_control("devices=2")) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(kernels_give_the_same_in_every_order, usual),
        cmocka_unit_test_setup(a_missing_barrier_changes_the_result, usual),
        cmocka_unit_test_setup(orders_differ, usual),
        cmocka_unit_test_setup(shared_memory_holds_nothing_when_a_block_starts, usual),
        cmocka_unit_test_setup(warps_exchange, usual),
        cmocka_unit_test_setup(lanes_that_are_gone_give_a_pattern, usual),
        cmocka_unit_test_setup(atomics_update, usual),
        cmocka_unit_test_setup(intrinsics_are_right, usual),
        cmocka_unit_test_setup(mistakes_end_the_kernel_and_are_named, usual),
        cmocka_unit_test_setup(the_byte_behind_a_block_is_seen_under_asan, usual),
        cmocka_unit_test_setup(device_memory_is_closed_to_the_host, usual),
        cmocka_unit_test_setup(a_kernel_cannot_reach_another_device, usual),
    };
    return cmocka_run_group_tests_name("emu", tests, NULL, NULL);
}
