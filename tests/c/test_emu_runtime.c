/* test_emu_runtime.c - the promises of the emulated device about CUDA's runtime: limits
 * and errors are a real device's, copies are checked, lazy streams show missing waits. */
#include "emu_check.h"

#include <sys/wait.h>

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
    assert_int_equal(k_add(p, 1, 1, s),
                     cudaErrorInvalidResourceHandle); /* what was left */
    assert_ok(cudaEventRecord(b, s));
    assert_int_equal(cudaEventElapsedTime(&ms, a, b), cudaErrorNotReady);
    while (cudaEventQuery(b) == cudaErrorNotReady) polls++;
    assert_int_equal(polls, 3);
    assert_int_equal(cudaGetLastError(), cudaErrorNotReady);
    assert_ok(cudaEventElapsedTime(&ms, a, b));
    assert_true(ms >= 0 && ms < 1e5f);
    assert_ok(k_add(p, 1, 1, s));
    assert_ok(k_add(p, 1, 1, s));
    for (polls = 0; cudaStreamQuery(s) == cudaErrorNotReady;) polls++;
    assert_int_equal(polls, 2);
    assert_int_equal(cudaGetLastError(), cudaErrorNotReady);
    assert_ok(cudaEventRecord(untimed, s));
    assert_ok(cudaEventSynchronize(untimed));
    assert_int_equal(cudaEventElapsedTime(&ms, a, untimed),
                     cudaErrorInvalidResourceHandle);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidResourceHandle);
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
    assert_int_equal(cudaDeviceGetAttribute(&n, (enum cudaDeviceAttr)100, 0),
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
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidDevice);
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
    assert_string_equal(cudaGetErrorString((cudaError_t)1000),
                        "unrecognized error code");
    assert_string_equal(cudaGetErrorName((cudaError_t)1000), "unrecognized error code");
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

int main(void)
{
    if (rle_emu_control("devices=2")) return 1;
    const struct CMUnitTest tests[] = {
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
    return cmocka_run_group_tests_name("emu runtime", tests, NULL, NULL);
}
