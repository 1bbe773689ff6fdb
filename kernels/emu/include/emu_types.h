/* emu_types.h - qualifiers and vector types of the CUDA language. */
#ifndef RLE_EMU_TYPES_H
#define RLE_EMU_TYPES_H

#include <stdint.h>

#define __global__ static
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

/* Shared variables are thread-local ones, and the plug-in has no others: its whole
 * thread-local block is filled with a pattern before a block of threads runs. (GCC
 * ignores a section attribute inside templates.) */
#define __shared__ static thread_local

struct uint3 {
    unsigned x, y, z;
};
struct int3 {
    int x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

/* Aligned as CUDA says: the loads and stores of one vector are one instruction there. */
#define RLE_EMU_VECTOR2(type, of, align)                                                 \
    struct alignas(align) type {                                                         \
        of x, y;                                                                         \
    };                                                                                   \
    static inline type make_##type(of x, of y)                                           \
    {                                                                                    \
        return type{x, y};                                                               \
    }
#define RLE_EMU_VECTOR4(type, of, align)                                                 \
    struct alignas(align) type {                                                         \
        of x, y, z, w;                                                                   \
    };                                                                                   \
    static inline type make_##type(of x, of y, of z, of w)                               \
    {                                                                                    \
        return type{x, y, z, w};                                                         \
    }

RLE_EMU_VECTOR2(int2, int, 8)
RLE_EMU_VECTOR2(uint2, unsigned, 8)
RLE_EMU_VECTOR2(float2, float, 8)
RLE_EMU_VECTOR2(double2, double, 16)
RLE_EMU_VECTOR2(longlong2, long long, 16)
RLE_EMU_VECTOR2(ulonglong2, unsigned long long, 16)
RLE_EMU_VECTOR2(uchar2, unsigned char, 2)
RLE_EMU_VECTOR4(int4, int, 16)
RLE_EMU_VECTOR4(uint4, unsigned, 16)
RLE_EMU_VECTOR4(float4, float, 16)
RLE_EMU_VECTOR4(uchar4, unsigned char, 4)

#undef RLE_EMU_VECTOR2
#undef RLE_EMU_VECTOR4

#endif
