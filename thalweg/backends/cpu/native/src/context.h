// What an open library holds, for the files that make up its interface.
#pragma once
#include <cstdlib>

#include "core.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace thalweg {

struct Context {
    Pool* pool;
    const Kernels* kernels;
    void* scratch = nullptr;
    size_t scratch_bytes = 0;
    bool follows = false;  // the processor: of a piece of memory that has begun to be read, it fetches the rest better than asked to
    int64_t least_block = 0;  // Linear::least_block
    bool beside = false;      // Linear::beside

    bool compresses = false;  // dense weights of bfloat16, where that succeeds

    void* room(size_t bytes) {
        if (bytes > scratch_bytes) {
            free(scratch);
            scratch_bytes = bytes + bytes / 4;
            scratch = aligned_alloc(64, (scratch_bytes + 63) / 64 * 64);
            if (!scratch) abort();
        }
        return scratch;
    }
};

inline size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Zeroed memory, on huge pages where the system gives them and it is large enough for one. Null if there is none.
void* take(size_t bytes);
void give(void* p, size_t bytes);

// Inputs that a step of a weight holds side by side.
inline int64_t unit_of(const Weight* w) { return w->form == Form::int8_rows || w->quads ? 4 : w->form == Form::dense && w->type == Type::f32 ? 1 : 2; }

// What belongs to the panels from `first` on.
inline Numbers numbers_of(Numbers n, const Weight& w, int64_t first) {
    if (!n.at) return n;
    n.at = (uint8_t*)n.at + first * w.groups * PANEL * bytes_of(n.held);
    if (n.units) n.units += first * ((w.groups + (int64_t(1) << n.per) - 1) >> n.per) * PANEL;
    return n;
}

// The panels from `first` on that hold the next n outputs, as a weight of their own.
inline Weight outputs_of(const Weight& w, int64_t first, int64_t n) {
    Weight some = w;
    some.n = n, some.panels = (n + PANEL - 1) / PANEL;
    some.data += first * w.panel_bytes;
    some.scales = numbers_of(w.scales, w, first), some.offsets = numbers_of(w.offsets, w, first);
    if (w.sums) some.sums += first * PANEL;
    if (w.outer) some.outer += first * PANEL;
    return some;
}

constexpr int64_t ROWS_BYTES = 4 << 20, ROWS_LEAST = 256;  // of a linear layer's input at a time; cpu/__init__.py counts them

// Rows x [m, k] made ready for a weight, in `room` where they do not fit as they are, and j told of them. Returns the bytes
// of room that it takes. room null: does nothing else.
size_t make_ready(Context* c, const Weight* w, Type type, const void* x, int64_t m, uint8_t* room, Linear& j);

// y += B (A x) of the rows of j's pieces. `low` has room for parts * rank numbers of each row from `first` on.
void add_pieces(Context* c, Lora& j);
constexpr int64_t LORA_PIECE = 64;  // rows of a piece, at most

}  // namespace thalweg

namespace thalweg {
struct Ranks;
}

// What recorded steps call, of other files than api.cpp, and what those call of it.
EXPORT void thalweg_gate(thalweg::Context* c, int type, const void* x, int64_t rows, int64_t width, int act, float most,
                         float most_up, void* y);
EXPORT void thalweg_experts(thalweg::Context* c, const thalweg::Weight* gate_up, const thalweg::Weight* down, int64_t experts,
                            int64_t inner, int act, float most, float most_up, int type, const void* x, int64_t tokens,
                            const int32_t* ids, const float* weights, int64_t k, void* out, const void* bias);
EXPORT void thalweg_route(thalweg::Context* c, const float* logits, const float* bias, int64_t rows, int64_t experts, int64_t k,
                          int sigmoid, int renormalise, float scale, int64_t groups, int64_t top_groups, int64_t group_best,
                          int32_t* ids, float* weights);
EXPORT void thalweg_heads(thalweg::Context* c, const thalweg::Weight* w, int64_t heads, int64_t n, int type, const void* x,
                          int64_t tokens, int64_t x_token, int64_t x_head, void* y);
EXPORT int thalweg_all_reduce(thalweg::Context* c, thalweg::Ranks* g, int type, const void* x, int64_t n, void* y);
EXPORT int thalweg_all_gather(thalweg::Context* c, thalweg::Ranks* g, const void* x, int64_t rows, int64_t bytes, void* y);
EXPORT void thalweg_gather(thalweg::Context* c, const thalweg::Weight* w, int type, const int32_t* tokens, int64_t count, void* out);
EXPORT void thalweg_lora_rows(thalweg::Context* c, const int32_t* slot, const int32_t* seq, const int32_t* read, int64_t n,
                              int64_t count, int32_t* slots, int32_t* order, int32_t* starts);
EXPORT void thalweg_lora_add(thalweg::Context* c, int type, void* y, const void* x, int64_t inputs, int64_t outputs,
                             const int32_t* order, const int32_t* starts, int64_t slots, const void* a, const void* b,
                             const int32_t* ranks, const int64_t* bounds, int64_t parts, int64_t rank);
EXPORT void thalweg_lora_rescale(thalweg::Context* c, int type, void* y, const int32_t* slots, const float* vectors, int64_t rows,
                                 int64_t width);
EXPORT void thalweg_lora_experts(thalweg::Context* c, const thalweg::Weight* gate_up, const thalweg::Weight* down, int64_t experts,
                                 int64_t inner, int act, float most, float most_up, int type, const void* x, int64_t tokens,
                                 const int32_t* ids, const float* weights, int64_t k, void* out, const int32_t* slots, const void* gate_up_a,
                                 const void* gate_up_b, const void* down_a, const void* down_b, const int32_t* ranks, int64_t rank);
EXPORT void thalweg_read_chosen(thalweg::Context* c, thalweg::Reads* j);
EXPORT void thalweg_choose(thalweg::Context* c, const thalweg::Choice* j);
EXPORT void thalweg_pool(thalweg::Context* c, thalweg::Pooling* j);
EXPORT void thalweg_hyper(thalweg::Context* c, thalweg::Hyper* j);
EXPORT void thalweg_decays(thalweg::Context* c, thalweg::Decays* j);
