/* emu_check.h - what the tests of the emulated device share. */
#ifndef RLE_TESTS_EMU_CHECK_H
#define RLE_TESTS_EMU_CHECK_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

#define assert_ok(call) assert_int_equal(call, cudaSuccess)
#define assert_says(words)                                                               \
    do {                                                                                 \
        if (!strstr(rle_emu_message(), words))                                           \
            fail_msg("\"%s\" does not say \"%s\"", rle_emu_message(), words);            \
    } while (0)

static inline void control(const char *settings)
{
    const char *wrong = rle_emu_control(settings);
    if (wrong) fail_msg("%s: %s", settings, wrong);
}

static inline int usual(void **state)
{
    (void)state;
    control("reset order=forward streams=eager memory=1GiB seed=1 guard=on");
    return cudaSetDevice(0) == cudaSuccess ? 0 : -1;
}

static inline void *on_device(const void *bytes, size_t size)
{
    void *p = NULL;
    assert_ok(cudaMalloc(&p, size));
    assert_ok(bytes ? cudaMemcpy(p, bytes, size, cudaMemcpyHostToDevice)
                    : cudaMemset(p, 0, size));
    assert_ok(cudaDeviceSynchronize());
    return p;
}

static inline void fetch(void *to, const void *p, size_t size)
{
    assert_ok(cudaDeviceSynchronize());
    assert_ok(cudaMemcpy(to, p, size, cudaMemcpyDeviceToHost));
}

#endif
