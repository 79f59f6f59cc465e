// Weights into their packed form, and rows of them out of it again.
#include <cstring>
#include <vector>

#include "context.h"

using namespace thalweg;

namespace {

struct Pack {
    Weight* w;
    const void* const* parts;  // one's rows after another's
    const int64_t* part_rows;
    bool rounds;  // parts hold values of the weight's type, for a form of codes
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

typedef float Some __attribute__((vector_size(16)));
constexpr int64_t SOME = 4;

// A row of values as float32, then 0 up to whole vectors. (What is left to the compiler here, it makes vectors of.)
void widen(const Weight& w, const uint8_t* row, float* x) {
    if (w.type == Type::f32) {
        memcpy(x, row, w.k * 4);
    } else {
        const uint16_t* from = (const uint16_t*)row;
        for (int64_t k = 0; k < w.k; ++k) {
            const uint32_t wide = uint32_t(from[k]) << 16;
            memcpy(x + k, &wide, 4);
        }
    }
    for (int64_t k = w.k; k % SOME; ++k) x[k] = 0;
}
float nearest(float x) {  // whole, ties to even: beside 1.5 * 2^23 there is no room for a fraction
    x += 12582912.f;
    return x - 12582912.f;
}

// A row of float32 to codes, as hal.ops.quantise rounds them: by the largest magnitude of a group, or by its range with 0 in it.
// Groups are a multiple of four inputs, or the row.
void round_row(const Weight& w, const float* x, int64_t output, uint8_t* codes) {
    const bool zeros = w.offsets;
    const float middle = w.form == Form::int4 ? 8 : 128, most = zeros ? 2 * middle - 1 : middle - 1, least = zeros ? 0 : -middle;
    for (int64_t g = 0; g < w.groups; ++g) {
        const int64_t from = g * w.group, to = from + w.group < w.k ? from + w.group : w.k;
        Some low = {}, high = {};
        for (int64_t k = from; k < to; k += SOME) {
            Some v;
            memcpy(&v, x + k, sizeof v);
            low = v < low ? v : low, high = v > high ? v : high;
        }
        float bottom = 0, top = 0;
        for (int i = 0; i < SOME; ++i) bottom = low[i] < bottom ? low[i] : bottom, top = high[i] > top ? high[i] : top;
        float scale = zeros ? (top - bottom) / most : (top > -bottom ? top : -bottom) / most;
        if (!(scale > 0)) scale = 1;
        const float zero = zeros ? nearest(-bottom / scale) : 0.f;
        for (int64_t k = from; k < to; ++k) {
            float code = nearest(x[k] / scale) + zero;
            code = code < least ? least : code;
            code = code > most ? most : code;
            codes[k] = uint8_t(int32_t(code));
        }
        const int64_t at = (output / PANEL * w.groups + g) * PANEL + output % PANEL;
        w.scales[at] = scale;
        if (zeros) w.offsets[at] = zero - middle;
    }
}

void pack_panel(void* job, int64_t panel) {
    const Pack& p = *(const Pack*)job;
    const Weight& w = *p.w;
    const int64_t first = panel * PANEL, count = first + PANEL < w.n ? PANEL : w.n - first;
    const int64_t held = w.type == Type::f32 ? 4 : 2, bytes = w.form == Form::dense ? held : 1;
    std::vector<uint8_t> room, codes;
    const uint8_t* rows = rows_of(p, first, first + count, w.k * (p.rounds ? held : bytes), room);
    if (p.rounds) {
        codes.resize(count * w.k);
        std::vector<float> row(w.k + SOME);
        for (int64_t c = 0; c < count; ++c) {
            widen(w, rows + c * w.k * held, row.data());
            round_row(w, row.data(), first + c, codes.data() + c * w.k);
        }
        rows = codes.data();
    }
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
// scales float32 [n, groups]; zeros uint8 [n, groups] or null; group: inputs of a scale, even; >= k: one group. Where scales are
// null and the form is one of codes, parts hold values of `type`, which are rounded: shifted says whether with zero points.
EXPORT Weight* thalweg_pack(Context* c, int form, int type, const void* const* parts, const int64_t* part_rows, int64_t n,
                            int64_t k, int64_t group, const float* scales, const uint8_t* zeros, int shifted) {
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
    w->bytes = data + table * (shifted ? 2 : 1) + (w->form == Form::int8_rows ? w->panels * PANEL * 4 : 0);
    w->memory = take(w->bytes + 64);
    if (!w->memory) {
        delete w;
        return nullptr;
    }
    w->bytes += 64;
    uint8_t* at = w->data = (uint8_t*)w->memory;
    at += data;
    if (table) w->scales = (float*)at, at += table;
    if (shifted) w->offsets = (float*)at, at += table;
    if (w->form == Form::int8_rows) w->sums = (int32_t*)at;
    int middle = w->form == Form::int4 ? 8 : 128;
    for (int64_t row = 0; row < n && scales; ++row)
        for (int64_t g = 0; g < w->groups; ++g) {
            int64_t to = (row / PANEL * w->groups + g) * PANEL + row % PANEL;
            w->scales[to] = scales[row * w->groups + g];
            if (zeros) w->offsets[to] = float(zeros[row * w->groups + g] - middle);
        }
    Pack job{w, parts, part_rows, w->groups && !scales};
    run(c->pool, w->panels, pack_panel, &job);
    return w;
}

EXPORT void thalweg_free(Weight* w) {
    give(w->memory, w->bytes);
    delete w;
}

EXPORT int64_t thalweg_bytes(const Weight* w) { return int64_t(w->bytes); }

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
