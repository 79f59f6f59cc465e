// Weights into their packed form (pack.inc), and rows of them out of it again.
#include <cstring>
#include <memory>

#include "context.h"

using namespace thalweg;

namespace {

// Memory that is not filled with anything first.
typedef std::unique_ptr<uint8_t[]> Room;

struct Pack {
    const Kernels* kernels;
    Weight* w;
    const void* const* parts;  // one's rows after another's
    const int64_t* part_rows;
    bool rounds;  // parts hold values of the weight's type, for a form of codes
};

// Rows `first` .. `end` - 1 side by side: where they lie, or in `room` if they lie in several parts.
const uint8_t* rows_of(const Pack& p, int64_t first, int64_t end, int64_t row_bytes, Room& room) {
    int64_t part = 0;
    while (first >= p.part_rows[part]) first -= p.part_rows[part], end -= p.part_rows[part++];
    const uint8_t* from = (const uint8_t*)p.parts[part] + first * row_bytes;
    if (end <= p.part_rows[part]) return from;
    room.reset(new uint8_t[(end - first) * row_bytes]);
    for (uint8_t* to = room.get(); end > 0; first = 0, end -= p.part_rows[part++]) {
        int64_t rows = (end < p.part_rows[part] ? end : p.part_rows[part]) - first;
        memcpy(to, (const uint8_t*)p.parts[part] + first * row_bytes, rows * row_bytes);
        to += rows * row_bytes;
    }
    return room.get();
}

void pack_panel(void* job, int64_t panel) {
    const Pack& p = *(const Pack*)job;
    const Weight& w = *p.w;
    const int64_t first = panel * PANEL, count = first + PANEL < w.n ? PANEL : w.n - first;
    const int64_t held = w.type == Type::f32 ? 4 : 2, bytes = w.form == Form::dense ? held : 1, stride = up(w.k * bytes, 64);
    const int64_t row_bytes = w.k * (p.rounds ? held : bytes);
    Room joined, ready;
    const uint8_t* rows = rows_of(p, first, first + count, row_bytes, joined);
    if (p.rounds || count < PANEL || stride > row_bytes) {
        ready.reset(new uint8_t[PANEL * stride]);
        std::unique_ptr<float[]> wide(new float[p.rounds ? w.k + 64 : 0]);
        for (int64_t c = 0; c < count; ++c) {
            uint8_t* to = ready.get() + c * stride;
            if (p.rounds) p.kernels->round_row(w, rows + c * row_bytes, first + c, wide.get(), to);
            else memcpy(to, rows + c * row_bytes, row_bytes);
            memset(to + w.k * bytes, 0, stride - w.k * bytes);
        }
        memset(ready.get() + count * stride, 0, (PANEL - count) * stride);
        rows = ready.get();
    }
    const int64_t unit = unit_of(&w);
    p.kernels->pack_panel(w, rows, stride, (w.k + unit - 1) / unit, w.data + panel * w.panel_bytes);
    for (int64_t c = 0; c < count && w.sums; ++c) {
        int32_t sum = 0;
        for (int64_t k = 0; k < w.k; ++k) sum += ((const int8_t*)rows)[c * stride + k];
        w.sums[first + c] = 128 * sum;
    }
}

}  // namespace

// A packed weight, from rows of bfloat16, float32 or codes (a byte each: int8, or uint8 where there are zeros), in
// parts of part_rows rows, n in all.
// scales float32 [n, groups]. zeros uint8 [n, groups] or null. shifts float32 [n, groups] or null: zero points that need
// not be whole. group: inputs of a scale, even, and >= k for one group.
// Where scales are null and the form is one of codes, parts hold values of `type`, which are rounded. shifted says
// whether with zero points.
EXPORT Weight* thalweg_pack(Context* c, int form, int type, const void* const* parts, const int64_t* part_rows, int64_t n,
                            int64_t k, int64_t group, const float* scales, const uint8_t* zeros, const float* shifts, int shifted) {
    Weight* w = new Weight{};
    w->form = Form(form), w->type = Type(type), w->n = n, w->k = k, w->shifted = shifted;
    const bool whole = group >= k, fits = whole ? k <= PLANES_MOST : group % 4 == 0 && group <= PLANES_MOST;
    w->quads = w->form == Form::int4_groups || (c->kernels->planes && (w->form == Form::int8 || w->form == Form::int4) && fits);
    w->panels = (n + PANEL - 1) / PANEL;
    const int64_t unit = unit_of(w);
    int64_t units = (k + unit - 1) / unit;
    w->group = group >= k ? units * unit : group;
    w->groups = w->form == Form::dense ? 0 : (k + w->group - 1) / w->group;
    w->panel_bytes = units * (w->form == Form::int8 ? 64 : bits_of(w->form) == 4 ? 32 : 256 / unit) * unit;
    w->panel_bytes = up(w->panel_bytes, 64);
    size_t data = w->panels * w->panel_bytes, table = w->panels * w->groups * PANEL * 4;
    const bool offsets = shifted || w->form == Form::int4_groups;
    w->bytes = data + table * (offsets ? 2 : 1) + (w->form == Form::int8_rows ? w->panels * PANEL * 4 : 0);
    w->memory = take(w->bytes + 64);
    if (!w->memory) {
        delete w;
        return nullptr;
    }
    w->bytes += 64;
    uint8_t* at = w->data = (uint8_t*)w->memory;
    at += data;
    if (table) w->scales = (float*)at, at += table;
    if (offsets) w->offsets = (float*)at, at += table;
    if (w->form == Form::int8_rows) w->sums = (int32_t*)at;
    for (int64_t row = 0; row < n && scales; ++row)
        for (int64_t g = 0; g < w->groups; ++g) {
            int64_t to = (row / PANEL * w->groups + g) * PANEL + row % PANEL;
            w->scales[to] = scales[row * w->groups + g];
            if (!offsets) continue;
            const int64_t from = row * w->groups + g;
            w->offsets[to] = (shifts ? shifts[from] : float(zeros ? zeros[from] : middle_of(w->form))) - float(base_of(w->form));
        }
    Pack job{c->kernels, w, parts, part_rows, w->groups && !scales};
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
