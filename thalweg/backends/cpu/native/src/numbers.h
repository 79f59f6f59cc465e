// Scales and minima in the least memory that keeps every one of them exactly.
#pragma once
#include <cstring>

#include "core.h"

namespace thalweg {

constexpr int UNIT_INPUTS = 256;  // inputs whose scales may be whole multiples of one unit, as in GGUF's K-quants

inline uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

// float32 that float16 holds too.
inline bool fits_f16(uint32_t u) {
    const uint32_t e = u >> 23 & 255;
    if (!(u << 1)) return true;
    if (e >= 113 && e <= 142) return !(u & 0x1fff);
    return e >= 103 && e < 113 && !((u & 0x7fffff) & ((1u << (126 - e)) - 1));  // multiples of 2^-24
}
inline uint16_t as_f16(uint32_t u) {  // of those
    const uint32_t e = u >> 23 & 255, sign = u >> 16 & 0x8000;
    if (!(u << 1)) return uint16_t(sign);
    if (e >= 113) return uint16_t(sign | (e - 112) << 10 | (u >> 13 & 0x3ff));
    return uint16_t(sign | ((u & 0x7fffff) | 0x800000) >> (126 - e));
}
inline bool fits_bf16(uint32_t u) { return !(u & 0xffff) && (u >> 23 & 255) != 255; }

// `count` numbers as whole multiples, from -128 to 127, of the largest unit there is. False if there is none. The unit is
// negative where 128 of a positive one would be needed: of 16 scales of Q6_K the largest is -128 times theirs, whatever its sign.
inline bool as_bytes(const float* x, int64_t count, float* unit, int8_t* codes) {
    uint64_t odd[UNIT_INPUTS / 2], common = 0;
    int least = 1 << 20, at[UNIT_INPUTS / 2];
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t u = bits_of(x[i]), e = u >> 23 & 255;
        if (!(u << 1)) continue;
        if (e == 255 || !e) return false;
        const uint32_t m = (u & 0x7fffff) | 0x800000;
        const int zeros = __builtin_ctz(m);
        odd[i] = m >> zeros, at[i] = int(e) + zeros;
        least = at[i] < least ? at[i] : least;
    }
    for (int64_t i = 0; i < count; ++i) {
        if (!(bits_of(x[i]) << 1)) continue;
        if (at[i] - least > 7) return false;
        uint64_t a = odd[i] << (at[i] - least), b = common;
        odd[i] = a;
        for (a >>= __builtin_ctzll(a); b && a != b;) {  // the greatest common divisor, which is odd: one of them is
            b >>= __builtin_ctzll(b);
            if (a > b) a -= b;
            else if (b > a) b -= a;
            if (a) a >>= __builtin_ctzll(a);
        }
        common = a;
    }
    uint64_t most[2] = {0, 0};  // of numbers above 0, and below
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t u = bits_of(x[i]);
        if (!(u << 1)) continue;
        odd[i] /= common;
        most[u >> 31] = odd[i] > most[u >> 31] ? odd[i] : most[u >> 31];
    }
    const bool turned = most[0] > 127;
    if (most[turned] > 127 || most[!turned] > 128) return false;
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t u = bits_of(x[i]);
        const int64_t code = u << 1 ? int64_t(odd[i]) : 0;
        codes[i] = int8_t((u >> 31) ^ uint32_t(turned) ? -code : code);
    }
    *unit = common ? __builtin_ldexpf(turned ? -float(common) : float(common), least - 150) : 0.f;
    return true;
}

// Which of `Held` can hold some numbers of one output, as bits.
inline int fitting(const float* x, int64_t groups, int per) {
    bool f16 = true, bf16 = true, bytes = per > 0;
    for (int64_t g = 0; g < groups && (f16 || bf16); ++g) f16 = f16 && fits_f16(bits_of(x[g])), bf16 = bf16 && fits_bf16(bits_of(x[g]));
    int8_t codes[UNIT_INPUTS / 2];
    float unit;
    for (int64_t g = 0; g < groups && bytes; g += 1 << per) bytes = as_bytes(x + g, groups - g < 1 << per ? groups - g : 1 << per, &unit, codes);
    return 1 << int(Held::f32) | f16 << int(Held::f16) | bf16 << int(Held::bf16) | bytes << int(Held::bytes);
}

// The smallest of those, `per` groups to a unit. (A unit takes four bytes.)
inline Held smallest(int fits, int per) {
    if (fits >> int(Held::bytes) & 1 && (per > 2 || !(fits >> int(Held::f16) & 3))) return Held::bytes;
    return fits >> int(Held::f16) & 1 ? Held::f16 : fits >> int(Held::bf16) & 1 ? Held::bf16 : Held::f32;
}

// Numbers of one output into their place.
inline void hold(const Numbers& n, const Weight& w, int64_t output, const float* x) {
    const int64_t units = (w.groups + (int64_t(1) << n.per) - 1) >> n.per;
    int8_t codes[UNIT_INPUTS / 2];
    for (int64_t g = 0; g < w.groups; ++g) {
        const int64_t to = (output / PANEL * w.groups + g) * PANEL + output % PANEL, first = g >> n.per << n.per;
        if (n.held == Held::f32) n.f32()[to] = x[g];
        else if (n.held == Held::f16) ((uint16_t*)n.at)[to] = as_f16(bits_of(x[g]));
        else if (n.held == Held::bf16) ((uint16_t*)n.at)[to] = uint16_t(bits_of(x[g]) >> 16);
        else {
            float* unit = n.units + (output / PANEL * units + (g >> n.per)) * PANEL + output % PANEL;
            if (g == first) as_bytes(x + g, w.groups - g < int64_t(1) << n.per ? w.groups - g : int64_t(1) << n.per, unit, codes);
            ((int8_t*)n.at)[to] = codes[g - first];
        }
    }
}

}  // namespace thalweg
