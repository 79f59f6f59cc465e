// Blocks of GGUF files to codes, a byte each, and to scales and minima: value = code * scale - min. Layouts are those of
// llama.cpp's ggml-common.h. thalweg.checkpoint.gguf.blocks does the same in numpy, and tests hold the two equal.
#pragma once
#include <cstdint>
#include <cstring>

namespace thalweg {

// values, bytes: of a block. group: values that share a scale. numbers: minima null where there are none.
struct Blocks {
    int values, bytes, group;
    bool minima;
    void (*codes)(const uint8_t* b, uint8_t* out);
    void (*numbers)(const uint8_t* b, float* scales, float* minima);
};

inline float half_at(const uint8_t* p) {
    uint16_t h;
    memcpy(&h, p, 2);
    const uint32_t sign = uint32_t(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023;
    uint32_t u = sign | (e == 31 ? 255u << 23 : (e + 112) << 23) | m << 13;
    float f;
    if (!e) {  // below the normal ones: multiples of 2^-24
        f = float(m) * 0x1p-24f;
        return sign ? -f : f;
    }
    memcpy(&f, &u, 4);
    return f;
}

// Four bits each: the lower of so many bytes, then the higher.
template <int RUN>
inline void nibbles(const uint8_t* q, uint8_t* out) {
    for (int i = 0; i < RUN; ++i) out[i] = q[i] & 15, out[RUN + i] = q[i] >> 4;
}
template <int N>
inline void lowered(uint8_t* out, int by) {
    for (int i = 0; i < N; ++i) out[i] = uint8_t(out[i] - by);
}
inline void fifth_bits(const uint8_t* b, uint8_t* out) {
    for (int i = 0; i < 32; ++i) out[i] |= uint8_t((b[i / 8] >> (i % 8) & 1) << 4);
}
// Twelve bytes hold eight scales and eight minima of six bits.
inline void numbers_of_k(const uint8_t* b, float* scales, float* minima) {
    const float d = half_at(b), least = half_at(b + 2);
    const uint8_t* s = b + 4;
    for (int g = 0; g < 8; ++g) {
        const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 2 & 48);
        const int minimum = g < 4 ? s[g + 4] & 63 : (s[g + 4] >> 4) | (s[g] >> 2 & 48);
        scales[g] = d * float(scale), minima[g] = least * float(minimum);
    }
}

inline void q4_0(const uint8_t* b, uint8_t* out) { nibbles<16>(b + 2, out), lowered<32>(out, 8); }
inline void q4_1(const uint8_t* b, uint8_t* out) { nibbles<16>(b + 4, out); }
inline void q5_0(const uint8_t* b, uint8_t* out) { nibbles<16>(b + 6, out), fifth_bits(b + 2, out), lowered<32>(out, 16); }
inline void q5_1(const uint8_t* b, uint8_t* out) { nibbles<16>(b + 8, out), fifth_bits(b + 4, out); }
inline void q8_0(const uint8_t* b, uint8_t* out) { memcpy(out, b + 2, 32); }
inline void q4_k(const uint8_t* b, uint8_t* out) {
    for (int r = 0; r < 4; ++r) nibbles<32>(b + 16 + r * 32, out + r * 64);
}
inline void q5_k(const uint8_t* b, uint8_t* out) {
    for (int r = 0; r < 4; ++r) nibbles<32>(b + 48 + r * 32, out + r * 64);
    for (int i = 0; i < 256; ++i) out[i] |= uint8_t((b[16 + i % 32] >> (i / 32) & 1) << 4);
}
inline void q6_k(const uint8_t* b, uint8_t* out) {
    for (int r = 0; r < 2; ++r) {
        nibbles<64>(b + r * 64, out + r * 128);
        const uint8_t* high = b + 128 + r * 32;
        for (int i = 0; i < 128; ++i) out[r * 128 + i] |= uint8_t((high[i % 32] >> (i / 32 * 2) & 3) << 4);
    }
    lowered<256>(out, 32);
}
inline void one_scale(const uint8_t* b, float* scales, float*) { scales[0] = half_at(b); }
inline void one_minimum(const uint8_t* b, float* scales, float* minima) { scales[0] = half_at(b), minima[0] = -half_at(b + 2); }
inline void numbers_of_q6(const uint8_t* b, float* scales, float*) {
    const float d = half_at(b + 208);
    for (int g = 0; g < 16; ++g) scales[g] = d * float(int8_t(b[192 + g]));
}

// By the numbers that native/linear.py gives the types.
constexpr Blocks BLOCKS[] = {
    {32, 18, 32, false, q4_0, one_scale},    {32, 20, 32, true, q4_1, one_minimum},   {32, 22, 32, false, q5_0, one_scale},
    {32, 24, 32, true, q5_1, one_minimum},   {32, 34, 32, false, q8_0, one_scale},    {256, 144, 32, true, q4_k, numbers_of_k},
    {256, 176, 32, true, q5_k, numbers_of_k}, {256, 210, 16, false, q6_k, numbers_of_q6},
};

}  // namespace thalweg
