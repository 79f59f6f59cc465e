// Weights into their packed form (pack.inc), and rows of them out of it again.
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <memory>

#include "context.h"
#include "numbers.h"

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
    const float *scales, *mins;  // [n, groups]
    const uint8_t* zeros;
};

struct Fitting {
    const Weight* w;
    const float* numbers;  // [n, groups]
    int per;
    std::atomic<int> fits;
};
void fits_panel(void* job, int64_t panel) {
    Fitting& f = *(Fitting*)job;
    int all = f.fits.load(std::memory_order_relaxed);
    for (int64_t i = panel * PANEL; i < (panel + 1) * PANEL && i < f.w->n && all != 1 << int(Held::f32); ++i)
        all &= fitting(f.numbers + i * f.w->groups, f.w->groups, f.per);
    f.fits.fetch_and(all);
}

// How to hold numbers of every group.
Numbers held_by(Context* c, const Weight* w, const float* numbers) {
    Numbers made{Held::f32, 0, nullptr, nullptr};
    if (w->form == Form::int8_rows) return made;
    for (int64_t group = w->group; group < UNIT_INPUTS && !w->quads && UNIT_INPUTS % w->group == 0; group *= 2) ++made.per;
    Fitting job{w, numbers, made.per, {-1}};
    run(c->pool, w->panels, fits_panel, &job);
    made.held = smallest(job.fits, made.per);
    if (made.held != Held::bytes) made.per = 0;
    return made;
}

size_t size_of(const Weight* w, const Numbers& n) { return up(w->panels * w->groups * PANEL * bytes_of(n.held), 64); }
size_t units_of(const Weight* w, const Numbers& n) {
    if (!n.per) return 0;  // numbers are as they are, or multiples of scales
    return w->panels * ((w->groups + (1 << n.per) - 1) >> n.per) * PANEL * 4;
}

void levels_of(Weight* w, const float* levels) {
    const bool minima = w->offsets.held != Held::none && !w->shifted;
    for (int i = 0; i < 32; ++i) {
        const float x = levels ? levels[i % 16] : float(i % 16 - (minima ? 0 : w->form == Form::int6 ? 32 : middle_of(Form::int4)));
        if (i < 16) w->levels[i] = x;
        const uint32_t u = bits_of(x);
        w->halves[i] = uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
}

void hold_panel(const Pack& p, int64_t panel) {
    const Weight& w = *p.w;
    for (int64_t row = panel * PANEL; row < (panel + 1) * PANEL && row < w.n; ++row) {
        hold(w.scales, w, row, p.scales + row * w.groups);
        if (w.offsets.held == Held::none) continue;
        if (p.mins && !w.quads) {
            hold(w.offsets, w, row, p.mins + row * w.groups);
            continue;
        }
        for (int64_t g = 0; g < w.groups; ++g) {
            const int64_t to = (panel * w.groups + g) * PANEL + row % PANEL, from = row * w.groups + g;
            if (w.quads && p.mins) w.offsets.f32()[to] = p.mins[from] - float(base_of(w.form));
            else ((int8_t*)w.offsets.at)[to] = int8_t((p.zeros ? p.zeros[from] : middle_of(w.form)) - zero_of(&w));
        }
    }
}

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
    if (p.scales) hold_panel(p, panel);
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

// Will a weight of this form be held in quads?
EXPORT int thalweg_quads(Context* c, int form, int64_t k, int64_t group) {
    const bool whole = group >= k, fits = whole ? k <= PLANES_MOST : group % 4 == 0 && group <= PLANES_MOST;
    return Form(form) == Form::int4_groups || (c->kernels->planes && (Form(form) == Form::int8 || Form(form) == Form::int4) && fits);
}

// A packed weight, from rows of bfloat16, float32 or codes (a byte each: int8, uint8 where there are zeros, minima or
// levels, or e4m3), in parts of part_rows rows, n in all.
// scales float32 [n, groups]. zeros uint8 [n, groups] or null. mins float32 [n, groups] or null: what is subtracted, and
// in quads zero points that need not be whole. group: inputs of a scale, even, and >= k for one group.
// Where scales are null and the form is one of codes, parts hold values of `type`, which are rounded. shifted says
// whether with zero points; codes of int8 that come with minima have signs, unless it is set.
// levels: float32 [16], of a table. outer: float32 [n] or null, multiplies all scales of an output. act, input_scale: see
// Act.
EXPORT Weight* thalweg_pack(Context* c, int form, int type, const void* const* parts, const int64_t* part_rows, int64_t n,
                            int64_t k, int64_t group, const float* scales, const uint8_t* zeros, const float* mins, int shifted,
                            const float* levels, const float* outer, int act, float input_scale) {
    Weight* w = new Weight{};
    w->form = Form(form), w->type = Type(type), w->n = n, w->k = k, w->shifted = shifted, w->act = Act(act), w->input_scale = input_scale;
    w->quads = thalweg_quads(c, form, k, group);
    w->panels = (n + PANEL - 1) / PANEL;
    const int64_t unit = unit_of(w);
    int64_t units = (k + unit - 1) / unit;
    w->group = group >= k ? units * unit : group;
    w->groups = w->form == Form::dense ? 0 : (k + w->group - 1) / w->group;
    w->panel_bytes = units * (bits_of(w->form) == 4 ? 32 : w->form == Form::int6 ? 48 : w->form == Form::int8 || w->form == Form::float8 ? 64 : 256 / unit) * unit;
    w->panel_bytes = up(w->panel_bytes, 64);
    if (w->groups) w->scales = scales ? held_by(c, w, scales) : Numbers{bits_of(w->form) == 4 ? Held::bf16 : Held::f32, 0, nullptr, nullptr};
    if (mins && w->quads) w->offsets.held = Held::f32;
    else if (mins) w->offsets = held_by(c, w, mins);
    else if (w->form == Form::int4_groups || shifted) w->offsets.held = Held::bytes;  // zero points: as they are in quads, else of whole scales
    levels_of(w, levels);
    const size_t data = w->panels * w->panel_bytes, columns = w->panels * PANEL * 4;
    w->bytes = data + 64 + (w->form == Form::int8_rows ? columns : 0) + (outer ? columns : 0);
    for (const Numbers* of : {&w->scales, &w->offsets}) w->bytes += size_of(w, *of) + units_of(w, *of);
    w->memory = take(w->bytes);
    if (!w->memory) {
        delete w;
        return nullptr;
    }
    uint8_t* at = w->data = (uint8_t*)w->memory;
    at += data;
    for (Numbers* of : {&w->scales, &w->offsets}) {
        if (of->held == Held::none) continue;
        of->at = at, at += size_of(w, *of);
        if (units_of(w, *of)) of->units = (float*)at, at += units_of(w, *of);
    }
    if (w->form == Form::int8_rows) w->sums = (int32_t*)at, at += columns;
    if (outer) memcpy(w->outer = (float*)at, outer, n * 4);
    Pack job{c->kernels, w, parts, part_rows, w->groups && !scales, scales, mins, zeros};
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
