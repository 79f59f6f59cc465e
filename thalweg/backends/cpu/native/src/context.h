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

}  // namespace thalweg

EXPORT void thalweg_gather(thalweg::Context* c, const thalweg::Weight* w, const int32_t* tokens, int64_t count, void* out);
