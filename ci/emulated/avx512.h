// The instructions of AVX512 that the kernels use, in those of AVX2: included before every file by `ci/emulate avx512`, `avx512vnni`,
// `avx512bf16` and `amx` on processors without AVX512, so that these sets' kernels run there. EMULATED_AVX512 says how much there
// is: 1 the first set, 2 also VNNI, 3 also BF16, 4 also tiles. As Intel's manual has each: an element at a time, which the compiler puts in order.
#pragma once
#if defined(__AVX2__)  // not in the files of all processors
#include <immintrin.h>  // before the names below are said to be there: its own functions need the instructions

#include <cstdint>
#include <cstring>

#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512VL__ 1
#define __AVX512DQ__ 1
#if EMULATED_AVX512 > 1
#define __AVX512VNNI__ 1
#endif
#if EMULATED_AVX512 > 2
#define __AVX512BF16__ 1
#endif
#if EMULATED_AVX512 > 3
#define __AMX_TILE__ 1
#endif

namespace emulated {
#define EMULATED static __attribute__((noinline, unused))  // else each kernel has hundreds of copies

// A vector's elements of type T.
template <class T, class V>
struct Elements {
    static constexpr int N = sizeof(V) / sizeof(T);
    T at[N];
    Elements() = default;
    explicit Elements(V v) { memcpy(at, &v, sizeof v); }
    V whole() const {
        V v;
        memcpy(&v, at, sizeof v);
        return v;
    }
};
// A vector whose element i is f(i).
template <class T, class V, class F>
EMULATED V each(const F& f) {
    Elements<T, V> to;
    for (int i = 0; i < to.N; ++i) to.at[i] = f(i);
    return to.whole();
}
// f of the elements of one vector, or of two.
template <class T, class To, class From, class V, class F>
EMULATED V of(From v, const F& f) {
    const Elements<T, From> x(v);
    return each<To, V>([&](int i) { return To(f(x.at[i])); });
}
template <class T, class V, class F>
EMULATED V both(V a, V b, const F& f) {
    const Elements<T, V> x(a), y(b);
    return each<T, V>([&](int i) { return T(f(x.at[i], y.at[i])); });
}
template <class T, class V>
EMULATED V chosen(uint32_t mask, V yes, V no) {
    const Elements<T, V> x(yes), y(no);
    return each<T, V>([&](int i) { return mask >> i & 1 ? x.at[i] : y.at[i]; });
}

EMULATED __m512i every16(int16_t x) { return each<int16_t, __m512i>([=](int) { return x; }); }
EMULATED __m512i every32(int32_t x) { return each<int32_t, __m512i>([=](int) { return x; }); }
EMULATED __m512 zero() { return __m512{}; }
EMULATED __m512i read(const void* p) { __m512i v; memcpy(&v, p, 64); return v; }
EMULATED __m512 read_floats(const void* p) { __m512 v; memcpy(&v, p, 64); return v; }
EMULATED void write_floats(void* p, __m512 v) { memcpy(p, &v, 64); }
EMULATED __m256i lower_half(__m512i v) { __m256i half; memcpy(&half, &v, 32); return half; }

EMULATED __m512i widen_u16(__m256i v) { return of<uint16_t, int32_t, __m256i, __m512i>(v, [](uint16_t x) { return x; }); }
EMULATED __m512i widen_i16(__m256i v) { return of<int16_t, int32_t, __m256i, __m512i>(v, [](int16_t x) { return x; }); }
EMULATED __m512i widen_i8(__m128i v) { return of<int8_t, int32_t, __m128i, __m512i>(v, [](int8_t x) { return x; }); }
EMULATED __m512i bytes_to_i16(__m256i v) { return of<int8_t, int16_t, __m256i, __m512i>(v, [](int8_t x) { return x; }); }
EMULATED __m512i bytes_to_u16(__m256i v) { return of<uint8_t, int16_t, __m256i, __m512i>(v, [](uint8_t x) { return x; }); }
EMULATED __m256i lowest_16(__m512i v) { return of<uint32_t, uint16_t, __m512i, __m256i>(v, [](uint32_t x) { return x; }); }
EMULATED __m128i lowest_8(__m512i v) { return of<uint32_t, uint8_t, __m512i, __m128i>(v, [](uint32_t x) { return x; }); }
EMULATED __m512 to_floats(__m512i v) { return of<int32_t, float, __m512i, __m512>(v, [](int32_t x) { return x; }); }
EMULATED __m512i to_whole(__m512 v) {  // towards zero
    return of<float, int32_t, __m512, __m512i>(v, [](float x) { return x >= -0x1p31f && x < 0x1p31f ? int32_t(x) : INT32_MIN; });
}
EMULATED __m512 halves_to_floats(__m256i v) {
    const __m256 parts[2] = {_mm256_cvtph_ps(_mm256_castsi256_si128(v)), _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1))};
    return read_floats(parts);
}

EMULATED __m512i left_32(__m512i v, int n) { return of<uint32_t, uint32_t, __m512i, __m512i>(v, [=](uint32_t x) { return x << n; }); }
EMULATED __m512i left_16(__m512i v, int n) { return of<uint16_t, uint16_t, __m512i, __m512i>(v, [=](uint16_t x) { return x << n; }); }
EMULATED __m512i right_16(__m512i v, int n) { return of<uint16_t, uint16_t, __m512i, __m512i>(v, [=](uint16_t x) { return x >> n; }); }
EMULATED __m512i right_signed(__m512i v, int n) { return of<int16_t, int16_t, __m512i, __m512i>(v, [=](int16_t x) { return x >> n; }); }
EMULATED __m512i bits_and(__m512i a, __m512i b) { return both<uint64_t>(a, b, [](uint64_t x, uint64_t y) { return x & y; }); }
EMULATED __m512i bits_or(__m512i a, __m512i b) { return both<uint64_t>(a, b, [](uint64_t x, uint64_t y) { return x | y; }); }
EMULATED __m512i by_table(__m512i a, __m512i b, __m512i c, int table) {  // bit by bit: that of the table at a * 4 + b * 2 + c
    const Elements<uint64_t, __m512i> x(a), y(b), z(c);
    return each<uint64_t, __m512i>([&](int i) {
        uint64_t to = 0;
        for (int n = 0; n < 8; ++n)
            if (table >> n & 1) to |= (n & 4 ? x.at[i] : ~x.at[i]) & (n & 2 ? y.at[i] : ~y.at[i]) & (n & 1 ? z.at[i] : ~z.at[i]);
        return to;
    });
}
EMULATED __m512i and_where(__m512i from, __mmask16 mask, __m512i a, __m512i b) { return chosen<uint32_t>(mask, bits_and(a, b), from); }

EMULATED __m512i add_16(__m512i a, __m512i b) { return both<uint16_t>(a, b, [](uint16_t x, uint16_t y) { return x + y; }); }
EMULATED __m512 add_floats(__m512 a, __m512 b) { return both<float>(a, b, [](float x, float y) { return x + y; }); }
EMULATED __m512 maximum(__m512 a, __m512 b) { return both<float>(a, b, [](float x, float y) { return x > y ? x : y; }); }
EMULATED __m512 minimum_where(__mmask16 mask, __m512 a, __m512 b) {
    return chosen<float>(mask, both<float>(a, b, [](float x, float y) { return x < y ? x : y; }), zero());
}
EMULATED __m512 multiply_add(__m512 a, __m512 b, __m512 c) {
    __m256 x[2], y[2], z[2];
    memcpy(x, &a, 64), memcpy(y, &b, 64), memcpy(z, &c, 64);
    for (int i = 0; i < 2; ++i) z[i] = _mm256_fmadd_ps(x[i], y[i], z[i]);
    return read_floats(z);
}
EMULATED __m512 scaled(__m512 a, __m512 b) {  // a * 2^floor(b)
    return both<float>(a, b, [](float x, float y) {
        if (x != x || y != y) return x + y;
        return __builtin_ldexpf(x, int(y < -1000.f ? -1000.f : y > 1000.f ? 1000.f : __builtin_floorf(y)));
    });
}
EMULATED __m512 fraction(__m512 a, int how) {  // what is above the next lower integer
    if (how != 9) __builtin_trap();
    return of<float, __m512>(a, [](float x) { return __builtin_isinf(x) ? 0.f : x - __builtin_floorf(x); });
}
EMULATED __m512 about_one_by(__m512 a) {  // the instruction is right to 2^-14
    return of<float, __m512>(a, [](float x) { return 1.f / x; });
}
EMULATED __m512i twos(__m512i a, __m512i b) {
    const Elements<int16_t, __m512i> x(a), y(b);
    return each<int32_t, __m512i>([&](int i) {
        return int32_t(uint32_t(x.at[2 * i] * y.at[2 * i]) + uint32_t(x.at[2 * i + 1] * y.at[2 * i + 1]));
    });
}
EMULATED __m512i bytes_in_twos(__m512i without, __m512i with) {  // signs; what does not fit 16 bits becomes the nearest that does
    const Elements<uint8_t, __m512i> x(without);
    const Elements<int8_t, __m512i> y(with);
    return each<int16_t, __m512i>([&](int i) {
        const int sum = x.at[2 * i] * y.at[2 * i] + x.at[2 * i + 1] * y.at[2 * i + 1];
        return int16_t(sum > INT16_MAX ? INT16_MAX : sum < INT16_MIN ? INT16_MIN : sum);
    });
}
EMULATED __m512i bytes_in_fours(__m512i s, __m512i without, __m512i with) {
    const Elements<int32_t, __m512i> to(s);
    const Elements<uint8_t, __m512i> x(without);
    const Elements<int8_t, __m512i> y(with);
    return each<int32_t, __m512i>([&](int i) {
        uint32_t sum = to.at[i];
        for (int n = 4 * i; n < 4 * i + 4; ++n) sum += x.at[n] * y.at[n];
        return int32_t(sum);
    });
}

EMULATED __mmask16 none_32(__m512i a, __m512i b) {
    const Elements<uint32_t, __m512i> x(a), y(b);
    uint32_t mask = 0;
    for (int i = 0; i < 16; ++i) mask |= uint32_t(!(x.at[i] & y.at[i])) << i;
    return mask;
}
EMULATED __mmask32 none_16(__m512i a, __m512i b) {
    const Elements<uint16_t, __m512i> x(a), y(b);
    uint32_t mask = 0;
    for (int i = 0; i < 32; ++i) mask |= uint32_t(!(x.at[i] & y.at[i])) << i;
    return mask;
}
EMULATED __mmask16 signs(__m512i a) { return __mmask16(~none_32(a, every32(INT32_MIN))); }
EMULATED __mmask16 compared(__m512 a, __m512 b, int how) {
    if (how != _CMP_NLT_UQ) __builtin_trap();  // the only one that the kernels ask for
    const Elements<float, __m512> x(a), y(b);
    uint32_t mask = 0;
    for (int i = 0; i < 16; ++i) mask |= uint32_t(!(x.at[i] < y.at[i])) << i;
    return mask;
}

EMULATED __m512i places_16(__m512i which, __m512i from) {
    const Elements<uint16_t, __m512i> x(which), y(from);
    return each<uint16_t, __m512i>([&](int i) { return y.at[x.at[i] & 31]; });
}
EMULATED __m512i places_of_two(__m512i a, __m512i which, __m512i b) {
    const Elements<uint16_t, __m512i> x(a), at(which), y(b);
    return each<uint16_t, __m512i>([&](int i) { return at.at[i] & 32 ? y.at[at.at[i] & 31] : x.at[at.at[i] & 31]; });
}
EMULATED __m512i places_16_where(__m512i no, __mmask32 mask, __m512i which, __m512i from) {
    return chosen<uint16_t>(mask, places_16(which, from), no);
}
EMULATED __m512 places_where(__m512 no, __mmask16 mask, __m512i which, __m512 from) {
    const Elements<uint32_t, __m512i> x(which);
    const Elements<float, __m512> y(from);
    return chosen<float>(mask, each<float, __m512>([&](int i) { return y.at[x.at[i] & 15]; }), no);
}

// Of 16 bytes each, as AVX2 has it in its halves.
EMULATED __m512i four_times(__m128i v) {
    const Elements<uint8_t, __m128i> x(v);
    return each<uint8_t, __m512i>([&](int i) { return x.at[i % 16]; });
}
EMULATED __m512i bytes_at(__m512i from, __m512i which) {
    const Elements<uint8_t, __m512i> x(which), y(from);
    return each<uint8_t, __m512i>([&](int i) { return x.at[i] & 128 ? 0 : y.at[i / 16 * 16 + x.at[i] % 16]; });
}
EMULATED __m512i in_turn(__m512i a, __m512i b, int half) {
    const Elements<uint8_t, __m512i> x(a), y(b);
    return each<uint8_t, __m512i>([&](int i) { return (i % 2 ? y : x).at[i / 16 * 16 + half * 8 + i % 16 / 2]; });
}
EMULATED __m512i to_bytes(__m512i a, __m512i b) {  // the nearest
    const Elements<int16_t, __m512i> x(a), y(b);
    return each<uint8_t, __m512i>([&](int i) {
        const int16_t wide = (i % 16 < 8 ? x : y).at[i / 16 * 8 + i % 8];
        return uint8_t(wide < 0 ? 0 : wide > 255 ? 255 : wide);
    });
}

}  // namespace emulated

#define _mm512_set1_epi16(x) emulated::every16(int16_t(x))
#define _mm512_set1_epi32(x) emulated::every32(int32_t(x))
#define _mm512_setzero_ps emulated::zero
#define _mm512_loadu_si512 emulated::read
#define _mm512_load_si512 emulated::read
#define _mm512_load_ps emulated::read_floats
#define _mm512_store_ps emulated::write_floats
#define _mm512_castsi512_si256 emulated::lower_half
#define _mm512_cvtepu16_epi32 emulated::widen_u16
#define _mm512_cvtepi16_epi32 emulated::widen_i16
#define _mm512_cvtepi8_epi32 emulated::widen_i8
#define _mm512_cvtepi8_epi16 emulated::bytes_to_i16
#define _mm512_cvtepu8_epi16 emulated::bytes_to_u16
#define _mm512_cvtepi32_epi16 emulated::lowest_16
#define _mm512_cvtepi32_epi8 emulated::lowest_8
#define _mm512_cvtepi32_ps emulated::to_floats
#define _mm512_maskz_cvtepi32_ps(mask, v) emulated::chosen<float>(mask, emulated::to_floats(v), emulated::zero())
#define _mm512_cvttps_epi32 emulated::to_whole
#define _mm512_maskz_cvtph_ps(mask, v) emulated::chosen<float>(mask, emulated::halves_to_floats(v), emulated::zero())
#define _mm512_slli_epi32 emulated::left_32
#define _mm512_slli_epi16 emulated::left_16
#define _mm512_srli_epi16 emulated::right_16
#define _mm512_srai_epi16 emulated::right_signed
#define _mm512_and_si512 emulated::bits_and
#define _mm512_or_si512 emulated::bits_or
#define _mm512_mask_and_epi32 emulated::and_where
#define _mm512_ternarylogic_epi32 emulated::by_table
#define _mm512_add_epi16 emulated::add_16
#define _mm512_add_ps emulated::add_floats
#define _mm512_max_ps emulated::maximum
#define _mm512_maskz_max_ps(mask, a, b) emulated::chosen<float>(mask, emulated::maximum(a, b), emulated::zero())
#define _mm512_maskz_min_ps emulated::minimum_where
#define _mm512_fmadd_ps emulated::multiply_add
#define _mm512_scalef_ps emulated::scaled
#define _mm512_rcp14_ps emulated::about_one_by
#undef _mm512_reduce_ps
#define _mm512_reduce_ps emulated::fraction
#define _mm512_maskz_scalef_ps(mask, a, b) emulated::chosen<float>(mask, emulated::scaled(a, b), emulated::zero())
#define _mm512_madd_epi16 emulated::twos
#define _mm512_maddubs_epi16 emulated::bytes_in_twos
#define _mm512_dpbusd_epi32 emulated::bytes_in_fours
#define _mm512_testn_epi32_mask emulated::none_32
#define _mm512_testn_epi16_mask emulated::none_16
#define _mm512_movepi32_mask emulated::signs
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask emulated::compared
#define _mm512_broadcast_i32x4 emulated::four_times
#define _mm512_shuffle_epi8 emulated::bytes_at
#define _mm512_unpacklo_epi8(a, b) emulated::in_turn(a, b, 0)
#define _mm512_unpackhi_epi8(a, b) emulated::in_turn(a, b, 1)
#define _mm512_packus_epi16 emulated::to_bytes
#define _mm512_permutexvar_epi16 emulated::places_16
#define _mm512_permutex2var_epi16 emulated::places_of_two
#define _mm512_mask_permutexvar_epi16 emulated::places_16_where
#define _mm512_mask_permutexvar_ps emulated::places_where
#define _mm512_maskz_permutexvar_ps(mask, which, from) emulated::places_where(emulated::zero(), mask, which, from)
#endif
