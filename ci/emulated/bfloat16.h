// The bfloat16 instructions of AVX512-BF16 that the kernels use, in instructions of AVX512: included before every file by
// ci/emulate, so that this set's kernels run on processors without them.
#pragma once
#if defined(__AVX512BF16__)
#include <immintrin.h>

#include <cstdint>
#include <cstring>

// Each lane: s + the products of two pairs. The instruction flushes denormals and rounds otherwise; tests allow for both.
static inline __m512 emulated_dp(__m512 s, __m512bh a, __m512bh b) {
    const __m512i x = (__m512i)a, y = (__m512i)b, high = _mm512_set1_epi32(int(0xffff0000));
    const __m512 lows = _mm512_fmadd_ps((__m512)_mm512_slli_epi32(x, 16), (__m512)_mm512_slli_epi32(y, 16), s);
    return _mm512_fmadd_ps((__m512)_mm512_and_si512(x, high), (__m512)_mm512_and_si512(y, high), lows);
}

// Sixteen numbers and sixteen more, rounded to nearest, ties to even.
static inline __m512bh emulated_ne2(__m512 high, __m512 low) {
    uint32_t from[32];
    uint16_t to[32];
    memcpy(from, &low, 64), memcpy(from + 16, &high, 64);
    for (int i = 0; i < 32; ++i) {
        const uint32_t u = from[i];
        to[i] = (u & 0x7fffffff) > 0x7f800000 ? uint16_t(u >> 16 | 64) : uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
    __m512i v;
    memcpy(&v, to, 64);
    return (__m512bh)v;
}
static inline __m256bh emulated_ne(__m512 x) {
    return (__m256bh)_mm512_castsi512_si256((__m512i)emulated_ne2(x, x));
}
#define _mm512_dpbf16_ps emulated_dp
#define _mm512_cvtne2ps_pbh emulated_ne2
#define _mm512_cvtneps_pbh emulated_ne
#endif
