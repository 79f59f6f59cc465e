// The instruction of AVX-VNNI that the kernels use, in instructions of AVX2: included before every file by ci/emulate, so that this
// set's kernels run on processors without it.
#pragma once
#if defined(__AVXVNNI__)
#include <immintrin.h>

// Each lane: s + the products of four bytes without sign with four with signs, none of which saturates.
static inline __m256i emulated_fours(__m256i s, __m256i without, __m256i with) {
    const __m256i low = _mm256_set1_epi16(255);
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(without, low), _mm256_srai_epi16(_mm256_slli_epi16(with, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(without, 8), _mm256_srai_epi16(with, 8));
    return _mm256_add_epi32(s, _mm256_add_epi32(even, odd));
}
#define _mm256_dpbusd_avx_epi32 emulated_fours
#endif
