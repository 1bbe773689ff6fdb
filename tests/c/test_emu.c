/* test_emu.c - the promises of the emulated device: what is wrong is found and named,
 * orders differ, lazy streams show missing waits, limits and errors are a real device's.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "emu_control.h"
#include "emu_kernels.h"

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#ifndef WITH_ASAN
#define WITH_ASAN 0
#endif

static const char *program;

#define assert_ok(call) assert_int_equal(call, cudaSuccess)
#define assert_says(words)                                                               \
    do {                                                                                 \
        if (!strstr(rle_emu_message(), words))                                           \
            fail_msg("\"%s\" does not say \"%s\"", rle_emu_message(), words);            \
    } while (0)

static void control(const char *settings)
{
    const char *wrong = rle_emu_control(settings);
    if (wrong) fail_msg("%s: %s", settings, wrong);
}

static int usual(void **state)
{
    (void)state;
    control("reset order=forward streams=eager memory=1GiB seed=1 guard=on");
    return cudaSetDevice(0) == cudaSuccess ? 0 : -1;
}

static void *on_device(const void *bytes, size_t size)
{
    void *p = NULL;
    assert_ok(cudaMalloc(&p, size));
    assert_ok(bytes ? cudaMemcpy(p, bytes, size, cudaMemcpyHostToDevice)
                    : cudaMemset(p, 0, size));
    assert_ok(cudaDeviceSynchronize());
    return p;
}

static void fetch(void *to, const void *p, size_t size)
{
    assert_ok(cudaDeviceSynchronize());
    assert_ok(cudaMemcpy(to, p, size, cudaMemcpyDeviceToHost));
}

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

/* ---- limits ---- */

static void launches_have_the_limits_of_a_device(void **state)
{
    (void)state;
    static const struct {
        dim3_c blocks, threads;
        size_t shared;
        int error;
    } c[] = {
        {{1, 1, 1}, {1024, 1, 1}, 48 << 10, 0},
        {{2, 3, 4}, {8, 4, 2}, 0, 0},
        {{1, 65535, 1}, {1, 1, 1}, 0, 0},
        {{1, 1, 1}, {1025, 1, 1}, 0, 9},
        {{1, 1, 1}, {32, 33, 1}, 0, 9},
        {{1, 1, 1}, {1, 1, 65}, 0, 9},
        {{1, 1, 1}, {0, 1, 1}, 0, 9},
        {{0, 1, 1}, {1, 1, 1}, 0, 9},
        {{1, 65536, 1}, {1, 1, 1}, 0, 9},
        {{1, 1, 65536}, {1, 1, 1}, 0, 9},
        {{0x80000000u, 1, 1}, {1, 1, 1}, 0, 9},
        {{1, 1, 1}, {32, 1, 1}, (48 << 10) + 1, 1},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        unsigned *out = on_device(NULL, 4), got;
        assert_int_equal(k_shape(out, c[i].blocks, c[i].threads, c[i].shared, NULL),
                         c[i].error);
        if (c[i].error) {
            assert_says("kernel count_threads");
            assert_int_equal(cudaPeekAtLastError(), c[i].error);
            assert_int_equal(cudaGetLastError(), c[i].error);
        }
        assert_ok(cudaGetLastError());
        fetch(&got, out, 4);
        unsigned n = c[i].blocks.x * c[i].blocks.y * c[i].blocks.z * c[i].threads.x *
                     c[i].threads.y * c[i].threads.z;
        assert_int_equal(got, c[i].error ? 0 : n);
        cudaFree(out);
    }
}

static void memory_is_counted_and_runs_out(void **state)
{
    (void)state;
    size_t before, free_bytes, total;
    const size_t mib = 1 << 20;
    control("memory=64MiB context=4MiB");
    assert_ok(cudaMemGetInfo(&before, &total));
    assert_int_equal(total, 64 * mib);
    assert_int_equal(before, 60 * mib);
    assert_int_equal(rle_emu_bytes_used(0), 4 * mib);
    assert_int_equal(rle_emu_bytes_used(7), 0);
    void *a, *b, *c;
    unsigned char bytes[16];
    assert_ok(cudaMalloc(&a, 100));
    assert_int_equal((uintptr_t)a % 256, 0);
    assert_ok(cudaMemcpy(bytes, a, 16, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 16; i++) assert_int_equal(bytes[i], 0xff);
    assert_ok(cudaMalloc(&b, 100));
    assert_ok(cudaMemGetInfo(&free_bytes, &total));
    assert_int_equal(free_bytes, 58 * mib); /* both from one piece of 2 MiB */
    assert_int_equal(cudaMalloc(&c, 59 * mib), cudaErrorMemoryAllocation);
    assert_null(c);
    assert_says("in use on device 0");
    assert_int_equal(cudaMalloc(&c, ~(size_t)0), cudaErrorMemoryAllocation);
    assert_ok(cudaMalloc(&c, 57 * mib));
    assert_ok(cudaMemGetInfo(&free_bytes, &total));
    assert_int_equal(free_bytes, 0);
    assert_ok(cudaFree(a));
    assert_ok(cudaFree(b));
    assert_ok(cudaFree(c));
    assert_ok(cudaFree(NULL));
    assert_ok(cudaMalloc(&a, 0));
    assert_null(a);
    assert_ok(cudaMemGetInfo(&free_bytes, &total));
    assert_int_equal(free_bytes, before);
    assert_int_equal(cudaFree(bytes), cudaErrorInvalidValue);
    assert_ok(cudaMalloc(&a, 512));
    assert_int_equal(cudaFree((char *)a + 8), cudaErrorInvalidValue);
    assert_ok(cudaFree(a));
    assert_int_equal(cudaFree(a), cudaErrorInvalidValue);
    /* A few thousand blocks, freed in another order, come back to one piece. */
    enum { MANY = 3000 };
    static void *block[MANY];
    for (int i = 0; i < MANY; i++) assert_ok(cudaMalloc(&block[i], 1 + (size_t)i * 7));
    for (int i = 0; i < MANY; i++) assert_ok(cudaFree(block[i * 7 % MANY]));
    assert_ok(cudaMemGetInfo(&free_bytes, &total));
    assert_int_equal(free_bytes, before);
}

/* ---- copies ---- */

static void wrong_copies_are_named(void **state)
{
    (void)state;
    char host[64], *a = on_device(NULL, 64), *b = on_device(NULL, 32);
    const struct {
        void *dst;
        const void *src;
        size_t size;
        int kind, error;
        const char *says;
    } c[] = {
        {host, host + 32, 8, cudaMemcpyHostToDevice, 1, "destination"},
        {a, b, 8, cudaMemcpyHostToDevice, 1, "source"},
        {a, b, 8, cudaMemcpyDeviceToHost, 1, "destination"},
        {host, host + 32, 8, cudaMemcpyDeviceToHost, 1, "source"},
        {host, a, 8, cudaMemcpyHostToHost, 1, "source"},
        {a, host, 65, cudaMemcpyHostToDevice, 1, "the last 1 bytes of the destination"},
        {host, b + 16, 20, cudaMemcpyDeviceToHost, 1, "the last 4 bytes of the source"},
        {host, b + 40, 4, cudaMemcpyDeviceToHost, 1, "the last 4 bytes of the source"},
        {host, a, 8, 7, 21, "no kind"},
        {a, b, 32, cudaMemcpyDeviceToDevice, 0, ""},
        {host, host + 32, 32, cudaMemcpyHostToHost, 0, ""},
        {a, host, 64, cudaMemcpyDefault, 0, ""},
        {host, a, 64, cudaMemcpyDefault, 0, ""},
        {host, host, 0, cudaMemcpyHostToDevice, 0, ""},
    };
    memset(host, 3, sizeof host);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        int error =
            cudaMemcpy(c[i].dst, c[i].src, c[i].size, (enum cudaMemcpyKind)c[i].kind);
        if (error != c[i].error) fail_msg("copy %zu: error %d", i, error);
        if (error) assert_says(c[i].says);
        if (error) assert_says("cudaMemcpy: ");
    }
    assert_int_equal(cudaMemset(host, 0, 4), cudaErrorInvalidValue);
    assert_int_equal(cudaMemset(a + 60, 0, 8), cudaErrorInvalidValue);
    assert_ok(cudaMemset(a + 60, 0, 4));
    cudaFree(a), cudaFree(b);
}

static void pageable_copies_are_taken_at_once_and_pinned_ones_later(void **state)
{
    (void)state;
    control("streams=lazy");
    cudaStream_t s;
    assert_ok(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    int pageable = 1, got, *pinned, *a = on_device(NULL, 4), *b = on_device(NULL, 4);
    assert_ok(cudaMallocHost((void **)&pinned, 4));
    *pinned = 1;
    assert_ok(cudaMemcpyAsync(a, &pageable, 4, cudaMemcpyHostToDevice, s));
    assert_ok(cudaMemcpyAsync(b, pinned, 4, cudaMemcpyHostToDevice, s));
    pageable = *pinned = 2;
    assert_ok(cudaStreamSynchronize(s));
    fetch(&got, a, 4);
    assert_int_equal(got, 1);
    fetch(&got, b, 4);
    assert_int_equal(got, 2);
    /* The way back: pageable waits, pinned does not. */
    assert_ok(k_add(b, 1, 0, s));
    assert_ok(cudaMemcpyAsync(pinned, b, 4, cudaMemcpyDeviceToHost, s));
    assert_int_equal(*pinned, 2);
    assert_ok(cudaMemcpyAsync(&got, b, 4, cudaMemcpyDeviceToHost, s));
    assert_int_equal(got, 3);
    assert_int_equal(*pinned, 3);
    assert_ok(cudaFreeHost(pinned));
    assert_int_equal(cudaFreeHost(&got), cudaErrorInvalidValue);
    assert_ok(cudaFreeHost(NULL));
    assert_ok(cudaStreamDestroy(s));
    cudaFree(a), cudaFree(b);
}

/* ---- streams ---- */

static void a_missing_wait_shows_in_lazy_streams(void **state)
{
    (void)state;
    for (int wait = 0; wait < 2; wait++) {
        for (int lazy = 0; lazy < 2; lazy++) {
            control(lazy ? "streams=lazy" : "streams=eager");
            cudaStream_t first, second;
            cudaEvent_t done;
            int got, *a = on_device(NULL, 4), *b = on_device(NULL, 4);
            assert_ok(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
            assert_ok(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
            assert_ok(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
            assert_ok(k_add(a, 1, 7, first));
            if (wait) {
                assert_ok(cudaEventRecord(done, first));
                assert_ok(cudaStreamWaitEvent(second, done, 0));
            }
            assert_ok(cudaEventDestroy(done)); /* runs nothing, and is still waited for */
            assert_ok(cudaMemcpyAsync(b, a, 4, cudaMemcpyDeviceToDevice, second));
            assert_ok(cudaStreamSynchronize(second));
            assert_ok(cudaMemcpyAsync(&got, b, 4, cudaMemcpyDeviceToHost, second));
            assert_int_equal(got, wait || !lazy ? 7 : 0);
            assert_ok(cudaStreamDestroy(first));
            assert_ok(cudaStreamDestroy(second));
            cudaFree(a), cudaFree(b);
        }
    }
}

static void destroying_runs_nothing(void **state)
{
    (void)state;
    control("streams=lazy");
    int *pinned, *a = on_device(NULL, 4);
    cudaStream_t s;
    cudaEvent_t e;
    rle_emu_stats before, after;
    assert_ok(cudaMallocHost((void **)&pinned, 4));
    assert_ok(cudaStreamCreate(&s));
    assert_ok(cudaEventCreate(&e));
    *pinned = 0;
    rle_emu_get_stats(&before);
    assert_ok(k_add(a, 1, 9, s));
    assert_ok(cudaMemcpyAsync(pinned, a, 4, cudaMemcpyDeviceToHost, s));
    assert_ok(cudaEventRecord(e, s));
    assert_ok(cudaEventDestroy(e));
    assert_ok(cudaStreamDestroy(s));
    rle_emu_get_stats(&after);
    assert_int_equal(after.launches, before.launches);
    assert_int_equal(*pinned, 0);
    assert_ok(cudaDeviceSynchronize());
    assert_int_equal(*pinned, 9);
    rle_emu_get_stats(&after);
    assert_int_equal(after.launches, before.launches + 1);
    assert_int_equal(after.threads, before.threads + 64);
    assert_true(after.switches > before.switches);
    assert_ok(cudaFreeHost(pinned));
    cudaFree(a);
}

static void events_tell_when(void **state)
{
    (void)state;
    cudaStream_t s;
    cudaEvent_t a, b, untimed;
    float ms = -1;
    int *p = on_device(NULL, 4), polls = 0;
    assert_ok(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    assert_ok(cudaEventCreate(&a));
    assert_ok(cudaEventCreate(&b));
    assert_ok(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    assert_ok(cudaEventQuery(a)); /* never recorded: nothing to wait for */
    assert_int_equal(cudaEventElapsedTime(&ms, a, b), cudaErrorInvalidResourceHandle);
    control("streams=lazy");
    assert_ok(cudaEventRecord(a, s));
    assert_ok(k_add(p, 1, 1, s));
    assert_ok(cudaEventRecord(b, s));
    assert_int_equal(cudaEventElapsedTime(&ms, a, b), cudaErrorNotReady);
    while (cudaEventQuery(b) == cudaErrorNotReady) polls++;
    assert_int_equal(polls, 3);
    assert_ok(cudaEventElapsedTime(&ms, a, b));
    assert_true(ms >= 0 && ms < 1e5f);
    assert_ok(k_add(p, 1, 1, s));
    assert_ok(k_add(p, 1, 1, s));
    for (polls = 0; cudaStreamQuery(s) == cudaErrorNotReady;) polls++;
    assert_int_equal(polls, 2);
    assert_ok(cudaEventRecord(untimed, s));
    assert_ok(cudaEventSynchronize(untimed));
    assert_int_equal(cudaEventElapsedTime(&ms, a, untimed),
                     cudaErrorInvalidResourceHandle);
    /* What waits for an event waits for its last record at that time. */
    int got;
    cudaStream_t t;
    assert_ok(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
    assert_ok(k_add(p, 1, 10, s));
    assert_ok(cudaEventRecord(a, s));
    assert_ok(cudaStreamWaitEvent(t, a, 0));
    assert_ok(k_add(p, 1, 0, t));
    assert_ok(k_add(p, 1, 100, s));
    assert_ok(cudaEventRecord(a, s));
    assert_ok(cudaMemcpyAsync(&got, p, 4, cudaMemcpyDeviceToHost, t));
    assert_int_equal(got, 11);
    assert_ok(cudaEventSynchronize(a));
    fetch(&got, p, 4);
    assert_int_equal(got, 100);
    assert_int_equal(cudaEventRecord(NULL, s), cudaErrorInvalidResourceHandle);
    assert_int_equal(cudaStreamWaitEvent(s, NULL, 0), cudaErrorInvalidResourceHandle);
    assert_int_equal(cudaEventDestroy(NULL), cudaErrorInvalidResourceHandle);
    assert_int_equal(cudaStreamDestroy(NULL), cudaErrorInvalidResourceHandle);
    assert_int_equal(cudaStreamCreateWithFlags(&t, 8), cudaErrorInvalidValue);
    assert_int_equal(cudaEventCreateWithFlags(&b, 64), cudaErrorInvalidValue);
    cudaEventDestroy(a), cudaEventDestroy(b), cudaEventDestroy(untimed);
    cudaStreamDestroy(s), cudaStreamDestroy(t), cudaFree(p);
}

static void the_default_stream_waits_for_blocking_ones(void **state)
{
    (void)state;
    control("streams=lazy");
    cudaStream_t blocking;
    assert_ok(cudaStreamCreate(&blocking));
    int got, *p = on_device(NULL, 4);
    assert_ok(k_add(p, 1, 5, blocking));
    assert_ok(k_add(p, 1, 0, NULL));
    assert_ok(cudaStreamSynchronize(NULL));
    assert_ok(k_add(p, 1, 0, NULL));
    assert_ok(cudaMemcpyAsync(&got, p, 4, cudaMemcpyDeviceToHost, blocking));
    assert_int_equal(got, 7);
    cudaStreamDestroy(blocking), cudaFree(p);
}

static void devices_keep_to_themselves(void **state)
{
    (void)state;
    int n, now;
    struct cudaDeviceProp prop;
    cudaStream_t other;
    cudaEvent_t event;
    size_t free0, free1, total;
    assert_ok(cudaGetDeviceCount(&n));
    assert_int_equal(n, 2);
    assert_int_equal(cudaSetDevice(2), cudaErrorInvalidDevice);
    assert_int_equal(cudaSetDevice(-1), cudaErrorInvalidDevice);
    assert_int_equal(cudaGetDeviceProperties(&prop, 2), cudaErrorInvalidDevice);
    control("memory=64MiB");
    assert_ok(cudaGetDeviceProperties(&prop, 1));
    assert_int_equal(prop.totalGlobalMem, 64 << 20);
    assert_int_equal(prop.sharedMemPerBlock, 48 << 10);
    assert_string_equal(prop.name, "emulated device");
    static const enum cudaDeviceAttr attributes[] = {
        cudaDevAttrMaxThreadsPerBlock,
        cudaDevAttrMaxSharedMemoryPerBlock,
        cudaDevAttrWarpSize,
        cudaDevAttrMultiProcessorCount,
        cudaDevAttrMaxThreadsPerMultiProcessor,
        cudaDevAttrComputeCapabilityMajor,
        cudaDevAttrComputeCapabilityMinor};
    static const int want[] = {1024, 48 << 10, 32, 4, 2048, 8, 0};
    for (int i = 0; i < 7; i++) {
        assert_ok(cudaDeviceGetAttribute(&n, attributes[i], 0));
        assert_int_equal(n, want[i]);
    }
    assert_int_equal(cudaDeviceGetAttribute(&n, (enum cudaDeviceAttr)9999, 0),
                     cudaErrorInvalidValue);
    assert_int_equal(cudaDeviceGetAttribute(&n, cudaDevAttrWarpSize, 5),
                     cudaErrorInvalidDevice);
    assert_ok(cudaSetDevice(1));
    assert_ok(cudaGetDevice(&now));
    assert_int_equal(now, 1);
    assert_ok(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    void *p = on_device(NULL, 10 << 20);
    assert_ok(cudaMemGetInfo(&free1, &total));
    assert_ok(cudaSetDevice(0));
    assert_ok(cudaMemGetInfo(&free0, &total));
    assert_int_equal(free0 - free1, 10 << 20);
    int *here = on_device(NULL, 4);
    assert_int_equal(k_add(here, 1, 1, other), cudaErrorInvalidResourceHandle);
    assert_says("the stream is of device 1");
    assert_ok(cudaEventCreate(&event));
    assert_int_equal(cudaEventRecord(event, other), cudaErrorInvalidResourceHandle);
    assert_ok(cudaEventDestroy(event));
    cudaFree(here), cudaFree(p); /* from any device */
    assert_ok(cudaStreamDestroy(other));
}

/* ---- errors and settings ---- */

static void failures_come_when_they_were_ordered(void **state)
{
    (void)state;
    void *p, *q = on_device(NULL, 4);
    cudaStream_t s;
    cudaEvent_t e;
    size_t free_bytes, total;
    int n;
    control("fail_malloc=2");
    assert_ok(cudaMalloc(&p, 4));
    assert_int_equal(cudaMalloc((void **)&s, 4), cudaErrorMemoryAllocation);
    assert_ok(cudaFree(p));
    control("fail_free=1 fail_host=1 fail_info=1 fail_copy=1:999 fail_launch=1 "
            "fail_stream=1");
    assert_int_equal(cudaFree(q), cudaErrorInvalidValue);
    assert_int_equal(cudaMallocHost(&p, 4), cudaErrorMemoryAllocation);
    assert_int_equal(cudaMemGetInfo(&free_bytes, &total), cudaErrorUnknown);
    assert_int_equal(cudaMemcpy(&n, q, 4, cudaMemcpyDeviceToHost), cudaErrorUnknown);
    assert_int_equal(k_add(q, 1, 1, NULL), cudaErrorLaunchOutOfResources);
    assert_int_equal(cudaStreamCreate(&s), cudaErrorMemoryAllocation);
    control("fail_event=1 fail_wait=1 fail_count=1:35 fail_device=1");
    assert_int_equal(cudaEventCreate(&e), cudaErrorMemoryAllocation);
    assert_int_equal(cudaDeviceSynchronize(), cudaErrorUnknown);
    assert_int_equal(cudaGetDeviceCount(&n), cudaErrorInsufficientDriver);
    assert_int_equal(cudaSetDevice(0), cudaErrorInvalidDevice);
    assert_ok(cudaSetDevice(0));
    /* One that ends the device shows when the work runs, with no more to say. */
    control("streams=lazy fail_launch=1:700");
    assert_ok(k_add(q, 1, 1, NULL));
    assert_int_equal(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    assert_string_equal(rle_emu_message(), "");
    assert_int_equal(cudaGetDeviceCount(&n), cudaSuccess);
    control("reset fail_copy=1:719");
    assert_int_equal(cudaMemcpy(&n, q, 4, cudaMemcpyDeviceToHost),
                     cudaErrorLaunchFailure);
    control("reset fail_malloc=1 fail_malloc=0");
    assert_ok(cudaMalloc(&p, 4));
    cudaFree(p), cudaFree(q);
}

static void errors_have_names(void **state)
{
    (void)state;
    assert_string_equal(cudaGetErrorString(cudaErrorIllegalAddress),
                        "an illegal memory access was encountered");
    assert_string_equal(cudaGetErrorName(cudaErrorIllegalAddress),
                        "cudaErrorIllegalAddress");
    assert_string_equal(cudaGetErrorString((cudaError_t)12345),
                        "unrecognized error code");
    assert_string_equal(cudaGetErrorName((cudaError_t)12345), "unrecognized error code");
    int version;
    assert_ok(cudaDriverGetVersion(&version));
    assert_int_equal(version, CUDART_VERSION);
    assert_ok(cudaRuntimeGetVersion(&version));
    assert_int_equal(version, CUDART_VERSION);
}

static void wrong_settings_are_named_and_nothing_is_set(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"colour=blue", "unknown setting \"colour\"; there are devices, "},
        {"fail_everything=1",
         "unknown setting \"fail_everything\"; failures are fail_count"},
        {"order=sideways", "order=sideways: one of forward, reverse, random is wanted"},
        {"streams", "streams=: one of eager, lazy is wanted"},
        {"guard=maybe", "guard=maybe: one of off, on is wanted"},
        {"devices=0", "devices=0: a number from 1 to 8 is wanted"},
        {"devices=3", "devices=3: must be set before a device is used"},
        {"seed=x", "seed=x: a number"},
        {"fail_malloc=x", "fail_malloc=x: a number"},
        {"fail_malloc=1:x", "fail_malloc=x: a number"},
        {"memory=much", "memory=much: a size up to 64GiB"},
        {"memory=1TiB", "memory=1TiB: a size up to 64GiB"},
        {"context=-1MiB", "context=-1MiB: a size"},
        {"trace=/nowhere/at/all", "trace=/nowhere/at/all: No such file"},
    };
    size_t before, after, total;
    assert_ok(cudaMemGetInfo(&before, &total));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[128];
        snprintf(text, sizeof text, "  memory=16MiB  %s ", bad[i][0]);
        const char *wrong = rle_emu_control(text);
        if (!wrong || strncmp(wrong, bad[i][1], strlen(bad[i][1])) != 0)
            fail_msg("%s: %s", bad[i][0], wrong ? wrong : "nothing is wrong");
    }
    assert_ok(cudaMemGetInfo(&after, &total));
    assert_int_equal(total, (size_t)1 << 30);
    assert_int_equal(after, before);
    control("");
    control("memory=1048576 context=512KiB devices=2");
    assert_ok(cudaMemGetInfo(&after, &total));
    assert_int_equal(total, 1 << 20);
    control("context=4MiB");
}

static void a_trace_names_every_call(void **state)
{
    (void)state;
    char path[64], text[64], settings[96];
    snprintf(path, sizeof path, "/tmp/rle-trace-%d", (int)getpid());
    snprintf(settings, sizeof settings, "trace=%s", path);
    control(settings);
    void *p;
    assert_ok(cudaMalloc(&p, 4));
    assert_ok(cudaFree(p));
    control("trace=");
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = 0;
    fclose(f);
    unlink(path);
    assert_string_equal(text, "cudaMalloc\ncudaFree\n");
}

static void a_forked_process_has_no_device(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        void *p;
        int n;
        bool refused = cudaMalloc(&p, 4) == cudaErrorInitializationError &&
                       cudaGetDeviceCount(&n) == cudaErrorInitializationError &&
                       strstr(rle_emu_message(), "forked") != NULL;
        _exit(refused ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    void *p; /* and the parent goes on */
    assert_ok(cudaMalloc(&p, 4));
    assert_ok(cudaFree(p));
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
        cmocka_unit_test_setup(launches_have_the_limits_of_a_device, usual),
        cmocka_unit_test_setup(memory_is_counted_and_runs_out, usual),
        cmocka_unit_test_setup(wrong_copies_are_named, usual),
        cmocka_unit_test_setup(pageable_copies_are_taken_at_once_and_pinned_ones_later,
                               usual),
        cmocka_unit_test_setup(a_missing_wait_shows_in_lazy_streams, usual),
        cmocka_unit_test_setup(destroying_runs_nothing, usual),
        cmocka_unit_test_setup(events_tell_when, usual),
        cmocka_unit_test_setup(the_default_stream_waits_for_blocking_ones, usual),
        cmocka_unit_test_setup(devices_keep_to_themselves, usual),
        cmocka_unit_test_setup(failures_come_when_they_were_ordered, usual),
        cmocka_unit_test_setup(errors_have_names, usual),
        cmocka_unit_test_setup(wrong_settings_are_named_and_nothing_is_set, usual),
        cmocka_unit_test_setup(a_trace_names_every_call, usual),
        cmocka_unit_test_setup(a_forked_process_has_no_device, usual),
    };
    return cmocka_run_group_tests_name("emu", tests, NULL, NULL);
}
