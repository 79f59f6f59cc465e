// The plain C interface, and the choice of instruction set. Pointers are trusted: the Python side checks shapes and types.
// One thread at a time drives a context.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "core.h"

namespace thalweg {
Pool* pool_open(int threads);
void pool_close(Pool* p);
}  // namespace thalweg

using namespace thalweg;

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int ABI = 5;
constexpr size_t HUGE = size_t(2) << 20;
constexpr int64_t ROWS_BYTES = 4 << 20, ROWS_LEAST = 256;  // of a linear layer's input at a time; cpu/__init__.py counts them

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

size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Zeroed memory, on huge pages where the system gives them and it is large enough for one.
void* take(size_t bytes) {
    bytes = up(bytes, 4096);
    size_t extra = bytes >= HUGE ? HUGE : 0;
    void* got = mmap(nullptr, bytes + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED) return nullptr;
    if (!extra) return got;
    auto start = (uintptr_t)got, aligned = up(start, HUGE);
    if (aligned > start) munmap(got, aligned - start);
    if (extra - (aligned - start)) munmap((void*)(aligned + bytes), extra - (aligned - start));
#ifdef MADV_HUGEPAGE
    madvise((void*)aligned, bytes, MADV_HUGEPAGE);
#endif
    return (void*)aligned;
}

void give(void* p, size_t bytes) { munmap(p, up(bytes, 4096)); }

// Best first.
struct Level {
    const Kernels* kernels;
    bool there;
};
int levels(Level* out) {
    int n = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512dq");
#if defined(HAS_AVX512BF16)
    out[n++] = {&avx512bf16_kernels, avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni")};
#endif
#if defined(HAS_AVX512VNNI)
    out[n++] = {&avx512vnni_kernels, avx512 && __builtin_cpu_supports("avx512vnni")};
#endif
#if defined(HAS_AVX512)
    out[n++] = {&avx512_kernels, avx512};
#endif
#if defined(HAS_AVX2)
    out[n++] = {&avx2_kernels, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")};
#endif
#endif
    out[n++] = {&portable_kernels, true};
    return n;
}

}  // namespace

EXPORT int thalweg_abi() { return ABI; }

// Names of the instruction sets built in that this processor has, best first, with commas between.
EXPORT const char* thalweg_levels() {
    static char text[128];
    Level all[8];
    text[0] = 0;
    for (int i = 0, n = levels(all); i < n; ++i)
        if (all[i].there) {
            if (text[0]) strcat(text, ",");
            strcat(text, all[i].kernels->name);
        }
    return text;
}

// level "": the best. Null if there is no such level.
EXPORT Context* thalweg_open(int threads, const char* level) {
    Level all[8];
    for (int i = 0, n = levels(all); i < n; ++i)
        if (all[i].there && (!level[0] || !strcmp(level, all[i].kernels->name))) return new Context{pool_open(threads), all[i].kernels};
    return nullptr;
}

EXPORT void thalweg_close(Context* c) {
    pool_close(c->pool);
    free(c->scratch);
    delete c;
}

EXPORT const char* thalweg_level(Context* c) { return c->kernels->name; }
EXPORT void* thalweg_take(size_t bytes) { return take(bytes); }
EXPORT void thalweg_give(void* p, size_t bytes) { give(p, bytes); }

namespace {

// Inputs that a step of a weight holds side by side.
int64_t unit_of(const Weight* w) { return w->form == Form::int8_rows ? 4 : w->form == Form::dense && w->type == Type::f32 ? 1 : 2; }

struct Pack {
    Weight* w;
    const void* const* parts;  // one's rows after another's
    const int64_t* part_rows;
};

// `rows` are those of a panel. Inputs first .. last - 1 of row c, one by one.
void pack_some(const Weight& w, const uint8_t* rows, uint8_t* out, int64_t c, int64_t first, int64_t last) {
    if (w.form == Form::dense && w.type == Type::f32) {
        const uint32_t* from = (const uint32_t*)rows + c * w.k;
        for (int64_t k = first; k < last; ++k) ((uint32_t*)out)[k * PANEL + c] = from[k];
    } else if (w.form == Form::dense) {
        const uint16_t* from = (const uint16_t*)rows + c * w.k;
        for (int64_t k = first; k < last; ++k) ((uint16_t*)out)[(k / 2 * PANEL + c) * 2 + k % 2] = from[k];
    } else {
        const int64_t per = w.form == Form::int8_rows ? 4 : 2;
        const uint8_t *from = rows + c * w.k, flip = w.offsets ? 128 : 0;
        for (int64_t k = first; k < last; ++k) out[(k / per * PANEL + c) * per + k % per] = from[k] ^ flip;
    }
}

typedef uint32_t Four __attribute__((vector_size(16)));

// A panel of 64 outputs is the transpose of 64 rows of 32-bit words, as far as words are whole: four by four, one line of
// four rows at a time. Returns the words of a row that were done.
int64_t transpose(const uint8_t* rows, int64_t row_bytes, uint32_t* out) {
    const int64_t words = row_bytes / 16 * 4;
    for (int64_t from = 0; from < words; from += 16) {
        const int64_t to = from + 16 < words ? from + 16 : words;
        for (int c = 0; c < PANEL; c += 4)
            for (int64_t u = from; u < to; u += 4) {
                Four a, b, d, e;
                memcpy(&a, rows + c * row_bytes + u * 4, 16), memcpy(&b, rows + (c + 1) * row_bytes + u * 4, 16);
                memcpy(&d, rows + (c + 2) * row_bytes + u * 4, 16), memcpy(&e, rows + (c + 3) * row_bytes + u * 4, 16);
                Four ab = __builtin_shuffle(a, b, Four{0, 4, 1, 5}), ba = __builtin_shuffle(a, b, Four{2, 6, 3, 7});
                Four de = __builtin_shuffle(d, e, Four{0, 4, 1, 5}), ed = __builtin_shuffle(d, e, Four{2, 6, 3, 7});
                Four columns[4] = {__builtin_shuffle(ab, de, Four{0, 1, 4, 5}), __builtin_shuffle(ab, de, Four{2, 3, 6, 7}),
                                   __builtin_shuffle(ba, ed, Four{0, 1, 4, 5}), __builtin_shuffle(ba, ed, Four{2, 3, 6, 7})};
                for (int i = 0; i < 4; ++i) memcpy(out + (u + i) * PANEL + c, &columns[i], 16);
            }
    }
    return words;
}

// int8 with bfloat16 steps: the same, of 16-bit units. flip: bits turned in each, which make unsigned codes signed.
int64_t transpose16(const uint8_t* rows, int64_t row_bytes, uint16_t* out, uint16_t flip) {
    const int64_t units = row_bytes / 2;
    for (int64_t from = 0; from < units; from += 16) {
        const int64_t to = from + 16 < units ? from + 16 : units;
        for (int c = 0; c < PANEL; ++c)
            for (int64_t u = from; u < to; ++u) {
                uint16_t unit;
                memcpy(&unit, rows + c * row_bytes + u * 2, 2);
                out[u * PANEL + c] = unit ^ flip;
            }
    }
    return units;
}

// 4-bit codes, a byte each: four outputs a quarter of a panel apart share a 16-bit word of two inputs. A word is written once.
void pack_nibbles(const Weight& w, const uint8_t* rows, uint8_t* out, int64_t left) {
    const uint8_t shift = w.offsets ? 0 : 8;
    for (int64_t from = 0; from < w.k; from += 64)
        for (int c = 0; c < 16; ++c) {
            const int64_t to = from + 64 < w.k ? from + 64 : w.k;
            for (int64_t k = from; k < (to + 1) / 2 * 2; ++k) {
                uint16_t word = 0;
                for (int64_t q = 0, row = c; q < 4 && row < left; ++q, row += 16) {
                    const int code = k < w.k ? (rows[row * w.k + k] + shift) & 15 : 8;  // past the end: 0
                    word |= uint16_t(code << (4 * q));
                }
                memcpy(out + k / 2 * 64 + c * 4 + k % 2 * 2, &word, 2);
            }
        }
}

// Rows `first` .. `end` - 1 side by side: where they lie, or in `room` if they lie in several parts.
const uint8_t* rows_of(const Pack& p, int64_t first, int64_t end, int64_t row_bytes, std::vector<uint8_t>& room) {
    int64_t part = 0;
    while (first >= p.part_rows[part]) first -= p.part_rows[part], end -= p.part_rows[part++];
    const uint8_t* from = (const uint8_t*)p.parts[part] + first * row_bytes;
    if (end <= p.part_rows[part]) return from;
    room.resize((end - first) * row_bytes);
    for (uint8_t* to = room.data(); end > 0; first = 0, end -= p.part_rows[part++]) {
        int64_t rows = (end < p.part_rows[part] ? end : p.part_rows[part]) - first;
        memcpy(to, (const uint8_t*)p.parts[part] + first * row_bytes, rows * row_bytes);
        to += rows * row_bytes;
    }
    return room.data();
}

void pack_panel(void* job, int64_t panel) {
    const Pack& p = *(const Pack*)job;
    const Weight& w = *p.w;
    const int64_t first = panel * PANEL, count = first + PANEL < w.n ? PANEL : w.n - first;
    const int64_t bytes = w.form != Form::dense ? 1 : w.type == Type::f32 ? 4 : 2;
    std::vector<uint8_t> room;
    const uint8_t* rows = rows_of(p, first, first + count, w.k * bytes, room);
    uint8_t* out = w.data + panel * w.panel_bytes;
    if (w.form == Form::int4) return pack_nibbles(w, rows, out, count);
    int64_t done = 0;  // inputs; those of a panel that is not full go one by one
    if (count == PANEL)
        done = w.form == Form::int8 ? transpose16(rows, w.k, (uint16_t*)out, w.offsets ? 0x8080 : 0) * 2
                                    : transpose(rows, w.k * bytes, (uint32_t*)out) * 4 / bytes;
    // The rest a stretch at a time, so that what is written stays in the nearest cache until it is whole.
    for (int64_t k = done; k < w.k; k += PANEL)
        for (int64_t c = 0; c < count; ++c) pack_some(w, rows, out, c, k, k + PANEL < w.k ? k + PANEL : w.k);
    for (int64_t c = 0; c < count && w.sums; ++c) {
        int32_t sum = 0;
        for (int64_t k = 0; k < w.k; ++k) sum += ((const int8_t*)rows)[c * w.k + k];
        w.sums[first + c] = 128 * sum;
    }
}

}  // namespace

// A packed weight, from rows of bfloat16, float32 or codes (a byte each: int8, or uint8 where there are zeros), in parts of
// part_rows rows, n in all.
// scales float32 [n, groups]; zeros uint8 [n, groups] or null; group: inputs of a scale, even; >= k: one group.
EXPORT Weight* thalweg_pack(Context* c, int form, int type, const void* const* parts, const int64_t* part_rows, int64_t n,
                            int64_t k, int64_t group, const float* scales, const uint8_t* zeros) {
    Weight* w = new Weight{};
    w->form = Form(form), w->type = Type(type), w->n = n, w->k = k;
    w->panels = (n + PANEL - 1) / PANEL;
    const int64_t unit = unit_of(w);
    int64_t units = (k + unit - 1) / unit;
    w->group = group >= k ? units * unit : group;
    w->groups = w->form == Form::dense ? 0 : (k + w->group - 1) / w->group;
    w->panel_bytes = units * (w->form == Form::int8 ? 128 : w->form == Form::int4 ? 64 : 256);
    w->panel_bytes = up(w->panel_bytes, 64);
    size_t data = w->panels * w->panel_bytes, table = w->panels * w->groups * PANEL * 4;
    w->bytes = data + table * (zeros ? 2 : 1) + (w->form == Form::int8_rows ? w->panels * PANEL * 4 : 0);
    w->memory = take(w->bytes + 64);
    if (!w->memory) {
        delete w;
        return nullptr;
    }
    w->bytes += 64;
    uint8_t* at = w->data = (uint8_t*)w->memory;
    at += data;
    if (table) w->scales = (float*)at, at += table;
    if (zeros) w->offsets = (float*)at, at += table;
    if (w->form == Form::int8_rows) w->sums = (int32_t*)at;
    int middle = w->form == Form::int4 ? 8 : 128;
    for (int64_t row = 0; row < n && w->groups; ++row)
        for (int64_t g = 0; g < w->groups; ++g) {
            int64_t to = (row / PANEL * w->groups + g) * PANEL + row % PANEL;
            w->scales[to] = scales[row * w->groups + g];
            if (zeros) w->offsets[to] = float(zeros[row * w->groups + g] - middle);
        }
    Pack job{w, parts, part_rows};
    run(c->pool, w->panels, pack_panel, &job);
    return w;
}

EXPORT void thalweg_free(Weight* w) {
    give(w->memory, w->bytes);
    delete w;
}

EXPORT int64_t thalweg_bytes(const Weight* w) { return int64_t(w->bytes); }

namespace {

// Some rows of a linear layer, made ready in scratch memory where they do not fit as they are. best: where y is null.
void linear_rows(Context* c, const Weight* w, Type type, const void* x, int64_t m, const void* bias, void* y, Best* best) {
    const bool sums = w->offsets != nullptr, rounds = w->form == Form::int8_rows;
    const bool widens = !rounds && type == Type::bf16 && c->kernels->widen_rows;
    const int64_t bytes = type == Type::bf16 && !widens ? 2 : 4, unit = unit_of(w);
    const bool pads = !rounds && !widens && w->k % unit;
    Linear j{};
    j.w = w, j.type = type, j.m = m, j.bias = bias, j.y = y, j.best = best;
    j.steps = (w->k + unit - 1) / unit;
    j.row_words = rounds ? j.steps : j.steps * unit * bytes / 4;
    // Rows whose distance is a multiple of 4 KiB would take each other's places in the nearest cache.
    if (widens) j.row_words = int64_t(up(j.row_words, 16)) | 16;
    j.words = (const uint32_t*)x;
    if (sums || rounds || widens || pads) {
        size_t rows = rounds || widens || pads ? up(m * j.row_words * 4, 64) : 0, scales = up(m * 4, 64);
        uint8_t* room = (uint8_t*)c->room(rows + scales + (sums ? m * w->groups * 4 : 0));
        if (rows) j.words = (const uint32_t*)room;
        float* after = (float*)(room + rows);
        Quantise q{j.type, x, m, w->k, w->group, w->groups, j.row_words, room, after, after + scales / 4};
        if (rounds) run(c->pool, (m + 15) / 16, c->kernels->quantise_rows, &q);
        if (widens) run(c->pool, (m + 15) / 16, c->kernels->widen_rows, &q);
        if (sums) run(c->pool, (m + 15) / 16, c->kernels->group_sums, &q);
        for (int64_t r = 0; r < m && pads; ++r) {
            uint8_t* to = room + r * j.row_words * 4;
            memcpy(to, (const uint8_t*)x + r * w->k * bytes, w->k * bytes);
            memset(to + w->k * bytes, 0, j.row_words * 4 - w->k * bytes);
        }
        j.row_scales = q.row_scales, j.group_sums = q.sums;
    }
    // Tasks small enough to share evenly, large enough that taking one costs nothing.
    int threads = pool_threads(c->pool);
    int64_t work = int64_t(w->panel_bytes) + m * w->k;
    int64_t even = w->panels / (threads * 4), cheap = (int64_t(128) << 10) / work;
    int64_t per = even < cheap ? even : cheap;
    j.panels_per_task = per > 1 ? per : 1;
    j.panels_ahead = j.panels_per_task > 1 ? 1 : threads;
    j.rows_per_chunk = m;
    if (w->panels < threads * 4 && m >= 256) j.rows_per_chunk = 128;
    j.row_chunks = (m + j.rows_per_chunk - 1) / j.rows_per_chunk;
    int64_t groups = (w->panels + j.panels_per_task - 1) / j.panels_per_task;
    run(c->pool, groups * j.row_chunks, c->kernels->linear, &j);
}

// So many rows at a time that they stay in a cache of the processor while every panel is multiplied with them.
void linear(Context* c, const Weight* w, Type type, const void* x, int64_t m, const void* bias, void* y, Best* best) {
    const int64_t bytes = type == Type::bf16 ? 2 : 4, fit = ROWS_BYTES / (w->k * 4) / 128 * 128;
    const int64_t most = fit > ROWS_LEAST ? fit : ROWS_LEAST;
    for (int64_t row = 0; row < m; row += most)
        linear_rows(c, w, type, (const uint8_t*)x + row * w->k * bytes, m - row < most ? m - row : most, bias,
                    y ? (uint8_t*)y + row * w->n * bytes : nullptr, y ? nullptr : best + row * w->panels);
}

}  // namespace

// y [m, n] = x [m, k] * w^T + bias [n] (or null), rows contiguous; type: of all three, that of a dense weight.
EXPORT void thalweg_linear(Context* c, const Weight* w, int type, const void* x, int64_t m, const void* bias, void* y) {
    linear(c, w, Type(type), x, m, bias, y, nullptr);
}

// Of each row of that y, which is not written, the place [m] and the value [m] of the largest: NaN if one is, of equals the
// first. room: 8 bytes for each row and 64 outputs.
EXPORT void thalweg_largest(Context* c, const Weight* w, int type, const void* x, int64_t m, const void* bias, void* room,
                            int32_t* at, float* most) {
    Best* best = (Best*)room;
    linear(c, w, Type(type), x, m, bias, nullptr, best);
    for (int64_t r = 0; r < m; ++r, best += w->panels) {
        Best found = best[0];
        for (int64_t i = 1; i < w->panels; ++i)
            if (best[i].most > found.most || best[i].most != best[i].most) found = best[i];
        at[r] = found.at, most[r] = found.most;
    }
}

namespace {

struct Gather {
    const Weight* w;
    const int32_t* tokens;
    int64_t count;
    uint8_t* out;
};
constexpr int64_t GATHERED = 8;  // rows of a task

void gather_rows(void* job, int64_t index) {
    const Gather& j = *(const Gather*)job;
    const int64_t bytes = j.w->type == Type::bf16 ? 2 : 4, row_bytes = j.w->k * bytes;
    for (int64_t i = index * GATHERED; i < (index + 1) * GATHERED && i < j.count; ++i) {
        uint8_t* out = j.out + i * row_bytes;
        const int64_t row = j.tokens[i];
        if (row < 0 || row >= j.w->n) {
            memset(out, 0, row_bytes);
            continue;
        }
        const uint32_t* from = (const uint32_t*)(j.w->data + row / PANEL * j.w->panel_bytes) + row % PANEL;
        int64_t at = 0;
        for (; at + 4 <= row_bytes; at += 4, from += PANEL) memcpy(out + at, from, 4);
        memcpy(out + at, from, row_bytes - at);
    }
}

}  // namespace

// Rows of a dense weight [n, k] as they were before they were packed: out [count, k]. Of a row there is none of, 0.
EXPORT void thalweg_gather(Context* c, const Weight* w, const int32_t* tokens, int64_t count, void* out) {
    Gather j{w, tokens, count, (uint8_t*)out};
    run(c->pool, (count + GATHERED - 1) / GATHERED, gather_rows, &j);
}

// Store keys and values of the step's tokens, then attend. Rows of sequences that no task names are not written.
EXPORT void thalweg_attend(Context* c, const Attention* a) {
    Attention j = *a;
    run(c->pool, (j.tokens + j.per_task - 1) / j.per_task, c->kernels->write_kv, &j);
    run(c->pool, j.task_count, c->kernels->attend, &j);
}

namespace {

// Rows cost about `bytes` each: a task is worth handing to another thread from 32 KiB on.
void by_rows(Context* c, Rows& j, Task task, int64_t bytes) {
    int64_t share = (j.rows + pool_threads(c->pool) - 1) / pool_threads(c->pool), least = (int64_t(32) << 10) / (bytes + 1) + 1;
    j.per_task = share > least ? share : least;
    if (j.rows > 0) run(c->pool, (j.rows + j.per_task - 1) / j.per_task, task, &j);
}

}  // namespace

// y = x / rms(x) * weight; with a residual, of total = x + residual. x [outer, inner, width], the outer `outer_stride` apart; the
// rest contiguous.
EXPORT void thalweg_norm(Context* c, int type, const void* x, int64_t outer, int64_t inner, int64_t width, int64_t outer_stride,
                         const void* residual, const void* weight, float eps, void* y, void* total) {
    Rows j{};
    j.type = Type(type), j.x = x, j.residual = residual, j.weight = weight, j.y = y, j.total = total;
    j.rows = outer * inner, j.width = width, j.inner = inner, j.outer_stride = outer_stride, j.eps = eps;
    by_rows(c, j, c->kernels->norm, width * 8);
}

// y [rows, width] = act(x[:, :width]) * x[:, width:]
EXPORT void thalweg_gate(Context* c, int type, const void* x, int64_t rows, int64_t width, int act, void* y) {
    Rows j{};
    j.type = Type(type), j.x = x, j.y = y, j.rows = rows, j.width = width, j.inner = 1, j.act = act;
    by_rows(c, j, c->kernels->gate, width * 16);
}

// q [tokens, heads, width] and k [tokens, other, width] turned by their positions; table float32 [positions, rotary]: cos, sin.
EXPORT void thalweg_turn(Context* c, int type, const void* q, const void* k, int64_t tokens, int64_t heads, int64_t other,
                         int64_t width, int64_t q_stride, int64_t k_stride, const int32_t* positions, const float* table,
                         int64_t rotary, void* q_out, void* k_out) {
    Rows j{};
    j.type = Type(type), j.x = q, j.residual = k, j.weight = table, j.y = q_out, j.total = k_out, j.rows = tokens;
    j.width = width, j.inner = heads, j.other_inner = other, j.outer_stride = q_stride, j.other_stride = k_stride;
    j.rotary = rotary, j.positions = positions;
    by_rows(c, j, c->kernels->turn, (heads + other) * width * 8);
}

// The place of the largest of each row, of equals the first: x float32 [rows, width] -> y [rows].
EXPORT void thalweg_best(Context* c, const float* x, int64_t rows, int64_t width, int32_t* y) {
    Rows j{};
    j.x = x, j.y = y, j.rows = rows, j.width = width, j.inner = 1;
    by_rows(c, j, c->kernels->best, width * 4);
}

namespace {

constexpr int WORDS = 20;  // of an entry of a recorded step: the number of a function, and its arguments after the context

float as_float(int64_t word) {
    int32_t low = int32_t(word);
    float f;
    memcpy(&f, &low, 4);
    return f;
}

}  // namespace

// The calls of a recorded step once more, in order, without a word between them to whoever recorded them.
EXPORT void thalweg_replay(Context* c, const int64_t* entries, int64_t n) {
    for (const int64_t *e = entries, *end = entries + n * WORDS; e < end; e += WORDS) {
        const int64_t* a = e + 1;
        auto at = [a](int i) { return (void*)a[i]; };
        switch (e[0]) {
            case 0: thalweg_linear(c, (const Weight*)at(0), int(a[1]), at(2), a[3], at(4), at(5)); break;
            case 1: thalweg_attend(c, (const Attention*)at(0)); break;
            case 2: thalweg_norm(c, int(a[0]), at(1), a[2], a[3], a[4], a[5], at(6), at(7), as_float(a[8]), at(9), at(10)); break;
            case 3: thalweg_gate(c, int(a[0]), at(1), a[2], a[3], int(a[4]), at(5)); break;
            case 4:
                thalweg_turn(c, int(a[0]), at(1), at(2), a[3], a[4], a[5], a[6], a[7], a[8], (const int32_t*)at(9),
                             (const float*)at(10), a[11], at(12), at(13));
                break;
            case 5: thalweg_best(c, (const float*)at(0), a[1], a[2], (int32_t*)at(3)); break;
            case 6:
                thalweg_largest(c, (const Weight*)at(0), int(a[1]), at(2), a[3], at(4), at(5), (int32_t*)at(6), (float*)at(7));
                break;
            case 7: thalweg_gather(c, (const Weight*)at(0), (const int32_t*)at(1), a[2], at(3)); break;
            default: abort();
        }
    }
}
