// AMX's tiles in instructions of AVX512, one row of sixteen numbers at a time: included before every file by `ci/emulate amx`, so
// that this set's kernels run on processors without tiles. As Intel's manual has them: shapes that do not fit are an error,
// TDPBF16PS takes denormals for zero and makes none, and rounds to nearest, ties to even.
#pragma once
#if defined(__AMX_TILE__)
#include <immintrin.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emulated {

struct Tile {
    int rows, bytes;  // of a row
    alignas(64) uint8_t at[16][64];
};
static thread_local Tile tiles[8];
static thread_local bool configured;

static inline void demand(bool holds, const char* what) {
    if (holds) return;
    fprintf(stderr, "amx: %s\n", what);
    abort();
}
static inline Tile& tile(int t) {
    demand(configured && tiles[t].rows > 0 && tiles[t].bytes > 0, "a tile without a shape");
    return tiles[t];
}
static inline void release() { memset(tiles, 0, sizeof tiles), configured = false; }
static inline void load_shapes(const void* from) {
    const uint8_t* p = (const uint8_t*)from;
    release();
    configured = true;
    demand(p[0] == 1 && p[1] == 0, "a palette other than 1");
    for (int i = 2; i < 16; ++i) demand(!p[i], "bytes in use that are not");
    for (int t = 0; t < 16; ++t) {
        uint16_t bytes;
        memcpy(&bytes, p + 16 + 2 * t, 2);
        demand(t < 8 ? bytes <= 64 && bytes % 4 == 0 && p[48 + t] <= 16 && !bytes == !p[48 + t] : !bytes && !p[48 + t], "no such shape");
        if (t < 8) tiles[t].rows = p[48 + t], tiles[t].bytes = bytes;
    }
}
static inline void zero(int t) { memset(tile(t).at, 0, sizeof tile(t).at); }
static inline void load(int t, const void* from, int64_t stride) {
    Tile& to = tile(t);
    zero(t);
    for (int r = 0; r < to.rows; ++r) memcpy(to.at[r], (const uint8_t*)from + r * stride, to.bytes);
}
static inline void store(int t, void* to, int64_t stride) {
    const Tile& from = tile(t);
    for (int r = 0; r < from.rows; ++r) memcpy((uint8_t*)to + r * stride, from.at[r], from.bytes);
}
static inline void fit(const Tile& sum, const Tile& a, const Tile& b) {
    demand(&sum != &a && &sum != &b && &a != &b, "a tile twice");
    demand(sum.rows == a.rows && sum.bytes == b.bytes && a.bytes == b.rows * 4, "shapes that do not fit each other");
}

// Denormals become zero, of their sign.
static inline __m512 flushed(__m512 x) {
    const __m512i u = (__m512i)x;
    const __mmask16 few = _mm512_testn_epi32_mask(u, _mm512_set1_epi32(0x7f800000));
    return (__m512)_mm512_mask_and_epi32(u, few, u, _mm512_set1_epi32(int(0x80000000)));
}
static inline void pairs(int s, int left, int right) {
    Tile& sum = tile(s);
    const Tile &a = tile(left), &b = tile(right);
    fit(sum, a, b);
    const __m512i high = _mm512_set1_epi32(int(0xffff0000));
    for (int m = 0; m < sum.rows; ++m) {
        __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
        for (int k = 0; k < b.rows; ++k) {
            int32_t two;
            memcpy(&two, a.at[m] + 4 * k, 4);
            const __m512i x = _mm512_set1_epi32(two), w = _mm512_load_si512(b.at[k]);
            even = flushed(_mm512_fmadd_ps(flushed((__m512)_mm512_slli_epi32(x, 16)), flushed((__m512)_mm512_slli_epi32(w, 16)), even));
            odd = flushed(_mm512_fmadd_ps(flushed((__m512)_mm512_and_si512(x, high)), flushed((__m512)_mm512_and_si512(w, high)), odd));
        }
        const __m512 more = flushed(_mm512_add_ps(even, odd));
        __m512 total = flushed(_mm512_add_ps(flushed(_mm512_load_ps(sum.at[m])), more));
        alignas(64) uint8_t row[64];
        _mm512_store_ps(row, total);
        memcpy(sum.at[m], row, sum.bytes);
    }
}
// Bytes of inputs have no sign, those of weights have one.
static inline void bytes(int s, int left, int right) {
    Tile& sum = tile(s);
    const Tile &a = tile(left), &b = tile(right);
    fit(sum, a, b);
    for (int m = 0; m < sum.rows; ++m)
        for (int n = 0; n < sum.bytes / 4; ++n) {
            int32_t total;
            memcpy(&total, sum.at[m] + 4 * n, 4);
            for (int k = 0; k < b.rows * 4; ++k) total += int(a.at[m][k]) * int(int8_t(b.at[k / 4][4 * n + k % 4]));
            memcpy(sum.at[m] + 4 * n, &total, 4);
        }
}

}  // namespace emulated

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbusd
#define _tile_loadconfig emulated::load_shapes
#define _tile_release emulated::release
#define _tile_loadd emulated::load
#define _tile_stored emulated::store
#define _tile_zero emulated::zero
#define _tile_dpbf16ps emulated::pairs
#define _tile_dpbusd emulated::bytes
#endif
