// Weights into their packed form (pack.inc), and rows of them out of it again.
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <memory>

#include "blocks.h"
#include "context.h"
#include "numbers.h"

using namespace thalweg;

namespace {

constexpr int SIXTEENTHS = 2;  // of `shifted`

// Memory that is not filled with anything first.
typedef std::unique_ptr<uint8_t[]> Room;

struct Pack {
    const Kernels* kernels;
    Weight* w;
    const void* const* parts;  // one's rows after another's
    const int64_t* part_rows;
    const Blocks* blocks;  // of which parts are made, or null
    bool rounds;  // parts hold values of the weight's type, for a form of codes
    const float *scales, *mins;  // [n, groups]
    const uint8_t* zeros;
    mutable std::atomic<bool> fails{false};  // of dense12: some panel has too many exponents for its tables
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
            const float zero = w.quads && p.mins ? p.mins[from] - float(base_of(w.form)) : 0.f;
            if (w.offsets.held == Held::f32) w.offsets.f32()[to] = zero;
            else if (w.offsets.held == Held::bf16) ((uint16_t*)w.offsets.at)[to] = uint16_t(bits_of(zero) >> 16);
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

// Scales and minima of a panel's rows, out of blocks.
struct Unpack {
    const Pack* pack;
    float *scales, *minima;
};
void unpack_numbers(void* job, int64_t panel) {
    const Unpack& u = *(const Unpack*)job;
    const Pack& p = *u.pack;
    const Weight& w = *p.w;
    const Blocks& of = *p.blocks;
    const int64_t first = panel * PANEL, count = first + PANEL < w.n ? PANEL : w.n - first, blocks = w.k / of.values, per = of.values / of.group;
    Room joined;
    const uint8_t* row = rows_of(p, first, first + count, blocks * of.bytes, joined);
    for (int64_t i = 0; i < count * blocks; ++i, row += of.bytes) {
        const int64_t at = first * w.groups + i * per;
        of.numbers(row, u.scales + at, u.minima ? u.minima + at : nullptr);
    }
}

void pack_panel(void* job, int64_t panel) {
    const Pack& p = *(const Pack*)job;
    const Weight& w = *p.w;
    const int64_t first = panel * PANEL, count = first + PANEL < w.n ? PANEL : w.n - first;
    const int64_t held = w.type == Type::f32 ? 4 : 2, bytes = w.groups ? 1 : held, stride = up(w.k * bytes, 64);
    if (p.fails) return;
    const int64_t row_bytes = p.blocks ? w.k / p.blocks->values * p.blocks->bytes : w.k * (p.rounds ? held : bytes);
    Room joined, ready;
    if (p.scales) hold_panel(p, panel);
    const uint8_t* rows = rows_of(p, first, first + count, row_bytes, joined);
    if (p.blocks || p.rounds || count < PANEL || stride > row_bytes) {
        ready.reset(new uint8_t[PANEL * stride]);
        std::unique_ptr<float[]> wide(new float[p.rounds ? w.k + 64 : 0]);
        for (int64_t c = 0; c < count; ++c) {
            uint8_t* to = ready.get() + c * stride;
            if (p.rounds) p.kernels->round_row(w, rows + c * row_bytes, first + c, wide.get(), to);
            else if (p.blocks)
                for (int64_t i = 0; i < w.k / p.blocks->values; ++i)
                    p.blocks->codes(rows + c * row_bytes + i * p.blocks->bytes, to + i * p.blocks->values);
            else memcpy(to, rows + c * row_bytes, row_bytes);
            memset(to + w.k * bytes, 0, stride - w.k * bytes);
        }
        memset(ready.get() + count * stride, 0, (PANEL - count) * stride);
        rows = ready.get();
    }
    const int64_t unit = unit_of(&w), steps = (w.k + unit - 1) / unit;
    uint8_t* out = w.data + panel * w.panel_bytes;
    if (w.form == Form::dense12) {
        Room dense(new uint8_t[steps * PANEL * 4]);
        p.kernels->pack_panel(w, rows, stride, steps, dense.get());
        if (!p.kernels->pack_dense12(dense.get(), steps, out)) p.fails = true;
        return;
    }
    p.kernels->pack_panel(w, rows, stride, steps, out);
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
    const bool serve = Form(form) == Form::int8_groups ? c->kernels->fours : c->kernels->planes && (Form(form) == Form::int8 || Form(form) == Form::int4);
    return Form(form) == Form::int4_groups || (serve && fits);
}

namespace {

// What is known of a weight before its numbers are. Of those only whether there are any.
Weight* begin(Context* c, int form, int type, int64_t n, int64_t k, int64_t group, int shifted, int act, float input_scale) {
    Weight* w = new Weight{};
    w->form = Form(form), w->type = Type(type), w->n = n, w->k = k, w->shifted = shifted != 0, w->sixteenths = shifted == SIXTEENTHS, w->act = Act(act), w->input_scale = input_scale;
    w->quads = thalweg_quads(c, form, k, group);
    w->panels = (n + PANEL - 1) / PANEL;
    const int64_t unit = unit_of(w);
    int64_t units = (k + unit - 1) / unit;
    w->group = group >= k ? units * unit : group;
    w->groups = w->form == Form::dense || w->form == Form::dense12 ? 0 : (k + w->group - 1) / w->group;
    w->panel_bytes = units * (bits_of(w->form) == 4 ? 32 : w->form == Form::int6 ? 48 : w->form == Form::int8 || w->form == Form::float8 ? 64 : 256 / unit) * unit;
    w->panel_bytes = up(w->form == Form::dense12 ? dense12_bytes(units) : w->panel_bytes, 64);
    return w;
}

// Is a dense weight packed in 12 bits, if that succeeds?
bool compresses(Context* c, int form, int type, int64_t k) {
    const int64_t steps = (k + 1) / 2;
    return c->compresses && Form(form) == Form::dense && Type(type) == Type::bf16 && dense12_bytes(steps) < steps * PANEL * 4;
}

// How numbers are held of values that are rounded on the way: that depends on nothing but the form.
void hold_rounded(Weight* w) {
    if (w->groups) w->scales = Numbers{scales_are_halves(w->form) ? Held::bf16 : Held::f32, 0, nullptr, nullptr};
}
void hold_zeros(Weight* w) {  // as they are in quads, else of whole scales
    if (w->form == Form::int4_groups || w->shifted) w->offsets.held = w->sixteenths ? Held::bf16 : Held::bytes;
}

// What a weight takes in memory, once it is known how its numbers are held.
void measure(Weight* w, bool outer) {
    const size_t data = w->panels * w->panel_bytes, columns = w->panels * PANEL * 4;
    w->bytes = data + 64 + (w->form == Form::int8_rows ? columns : 0) + (outer ? columns : 0);
    for (const Numbers* of : {&w->scales, &w->offsets}) w->bytes += size_of(w, *of) + units_of(w, *of);
}

// Where each part of it lies there.
void place(Weight* w, void* memory, bool outer) {
    const size_t columns = w->panels * PANEL * 4;
    uint8_t* at = w->data = (uint8_t*)memory;
    at += w->panels * w->panel_bytes;
    for (Numbers* of : {&w->scales, &w->offsets}) {
        if (of->held == Held::none) continue;
        of->at = at, at += size_of(w, *of);
        if (units_of(w, *of)) of->units = (float*)at, at += units_of(w, *of);
    }
    if (w->form == Form::int8_rows) w->sums = (int32_t*)at, at += columns;
    if (outer) w->outer = (float*)at;
}

// Are these zero points of quads bfloat16, above what they are counted from?
bool bf16_holds(const Weight* w, const float* zeros) {
    for (int64_t i = 0; i < w->n * w->groups; ++i)
        if (!fits_bf16(bits_of(zeros[i] - float(base_of(w->form))))) return false;
    return true;
}

// The rest, and the packing itself. Null, and no weight any more, where there is no memory.
Weight* finish(Context* c, Pack& job, const float* levels, const float* outer) {
    Weight* w = job.w;
    if (!job.scales) hold_rounded(w);
    else if (w->groups) w->scales = held_by(c, w, job.scales);
    if (job.mins && w->quads) w->offsets.held = bf16_holds(w, job.mins) ? Held::bf16 : Held::f32;
    else if (job.mins) w->offsets = held_by(c, w, job.mins);
    else hold_zeros(w);
    levels_of(w, levels);
    measure(w, outer);
    w->memory = take(w->bytes);
    if (!w->memory) {
        delete w;
        return nullptr;
    }
    place(w, w->memory, outer);
    if (outer) memcpy(w->outer, outer, w->n * 4);
    run(c->pool, w->panels, pack_panel, &job);
    return w;
}

}  // namespace

EXPORT void thalweg_free(Weight* w) {
    if (w->memory) give(w->memory, w->bytes);
    delete w;
}

// A packed weight, from rows of bfloat16, float32 or codes (a byte each: int8, uint8 where there are zeros, minima or
// levels, or e4m3), in parts of part_rows rows, n in all.
// scales float32 [n, groups]. zeros uint8 [n, groups] or null. mins float32 [n, groups] or null: what is subtracted, and
// in quads zero points that need not be whole. group: inputs of a scale, even, and >= k for one group.
// Where scales are null and the form is one of codes, parts hold values of `type`, which are rounded. shifted says
// whether with zero points (SIXTEENTHS: multiples of a 16th); codes of int8 that come with minima have signs, unless it is set.
// levels: float32 [16], of a table. outer: float32 [n] or null, multiplies all scales of an output. act, input_scale: see
// Act.
EXPORT Weight* thalweg_pack(Context* c, int form, int type, const void* const* parts, const int64_t* part_rows, int64_t n,
                            int64_t k, int64_t group, const float* scales, const uint8_t* zeros, const float* mins, int shifted,
                            const float* levels, const float* outer, int act, float input_scale) {
    if (compresses(c, form, type, k)) {
        Weight* w = begin(c, int(Form::dense12), type, n, k, group, 0, act, input_scale);
        Pack job{c->kernels, w, parts, part_rows};
        w = finish(c, job, nullptr, nullptr);
        if (!w || !job.fails) return w;
        thalweg_free(w);
    }
    Weight* w = begin(c, form, type, n, k, group, shifted, act, input_scale);
    Pack job{c->kernels, w, parts, part_rows, nullptr, w->groups && !scales, scales, mins, zeros};
    return finish(c, job, levels, outer);
}

// The same of rows of blocks, of which BLOCKS[kind] tells. k: a multiple of a block's values. form: int4, int8 or int6, not in
// quads.
EXPORT Weight* thalweg_pack_blocks(Context* c, int form, int kind, const void* const* parts, const int64_t* part_rows, int64_t n, int64_t k) {
    const Blocks* of = BLOCKS + kind;
    Weight* w = begin(c, form, 0, n, k, of->group, 0, 0, 0);
    const int64_t groups = k / of->group;
    std::unique_ptr<float[]> scales(new float[n * groups]), minima(new float[of->minima ? n * groups : 0]);
    Pack job{c->kernels, w, parts, part_rows, of, false, scales.get(), of->minima ? minima.get() : nullptr, nullptr};
    Unpack numbers{&job, scales.get(), of->minima ? minima.get() : nullptr};
    run(c->pool, w->panels, unpack_numbers, &numbers);
    return finish(c, job, nullptr, nullptr);
}

// From now on dense weights of bfloat16 are packed in about 12 bits each, those that can be. 0 if no kernel here takes them.
EXPORT int thalweg_compress(Context* c) {
    c->compresses = c->kernels->pack_dense12 != nullptr;
    return c->compresses;
}

// A weight that lies packed in somebody's memory already: what `thalweg_pack` made of dense values, or of values that it
// rounded, with the same arguments. The memory outlives it. Null if it takes another number of bytes.
EXPORT Weight* thalweg_adopt(Context* c, int form, int type, int64_t n, int64_t k, int64_t group, int shifted, int act, void* memory,
                             int64_t bytes) {
    for (bool less = compresses(c, form, type, k);; less = false) {
        Weight* w = begin(c, less ? int(Form::dense12) : form, type, n, k, group, shifted, act, 0);
        hold_rounded(w), hold_zeros(w), levels_of(w, nullptr), measure(w, false);
        if (int64_t(w->bytes) == bytes) {
            place(w, memory, false);
            return w;
        }
        delete w;
        if (!less) return nullptr;
    }
}

// Where it lies, and in how many bytes (`thalweg_bytes`).
EXPORT const void* thalweg_memory(const Weight* w) { return w->data; }

EXPORT int64_t thalweg_bytes(const Weight* w) { return int64_t(w->bytes); }

namespace {

struct Gather {
    const Kernels* kernels;
    const Weight* w;
    Type type;  // of the rows that come out
    const int32_t* tokens;
    int64_t count;
    uint8_t* out;
};

float number_at(const Numbers& n, int64_t at, int64_t unit) {
    if (n.held == Held::f32) return n.f32()[at];
    if (n.held == Held::bytes) return float(((const int8_t*)n.at)[at]) * (n.units ? n.units[unit] : 1.f);
    const uint8_t* p = (const uint8_t*)n.at + 2 * at;
    if (n.held == Held::f16) return half_at(p);
    uint32_t u = uint32_t(p[0]) << 16 | uint32_t(p[1]) << 24;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

// The code of input k of an output, of int8, int4 or int6, not in quads (see Weight): minus what zero points are counted from.
int code_at(const Weight& w, const uint8_t* panel, int64_t c, int64_t k) {
    const int64_t step = k / 2, odd = k % 2;
    if (w.form == Form::int8) return int8_t(panel[step * 2 * PANEL + c * 2 + odd]);
    const int64_t quarter = c / 16, place = c % 16;
    const uint8_t* at = panel + step * (w.form == Form::int6 ? PANEL * 3 / 2 : PANEL);
    const int low = at[place * 4 + odd * 2 + quarter / 2] >> (quarter % 2 * 4) & 15;
    const bool minima = w.offsets.held != Held::none && !w.shifted;
    if (w.form == Form::int4) return minima ? low : low - 8;
    const int high = at[PANEL + place * 2 + odd] >> (quarter * 2) & 3;
    return (low | high << 4) - (minima ? 0 : 32);
}

// A row as `hal.ops.quantise.dequantise` has it, to the last bit but where minima belong to codes above 127, which were shifted.
void decode_row(const Gather& j, int64_t row, uint8_t* out) {
    const Weight& w = *j.w;
    const int64_t panel = row / PANEL, c = row % PANEL, units = (w.groups + (int64_t(1) << w.scales.per) - 1) >> w.scales.per;
    const int64_t offset_units = (w.groups + (int64_t(1) << w.offsets.per) - 1) >> w.offsets.per;
    const bool zeros = w.offsets.held == Held::bytes && !w.offsets.units;
    const uint8_t* data = w.data + panel * w.panel_bytes;
    for (int64_t g = 0; g < w.groups; ++g) {
        const int64_t at = (panel * w.groups + g) * PANEL + c, end = (g + 1) * w.group < w.k ? (g + 1) * w.group : w.k;
        const float scale = number_at(w.scales, at, (panel * units + (g >> w.scales.per)) * PANEL + c);
        const float zero = zeros ? float(((const int8_t*)w.offsets.at)[at]) : 0.f;
        const bool minima = w.offsets.held != Held::none && !zeros;
        const float least = minima ? number_at(w.offsets, at, (panel * offset_units + (g >> w.offsets.per)) * PANEL + c) : 0.f;
        for (int64_t k = g * w.group; k < end; ++k) {
            float x = (float(code_at(w, data, c, k)) - zero) * scale;
            if (minima) {
                const volatile float product = x;  // rounded before the minimum is subtracted
                x = product - least;
            }
            if (j.type == Type::f32) {
                memcpy(out + 4 * k, &x, 4);
                continue;
            }
            const uint32_t u = bits_of(x);
            const uint16_t narrow = x != x ? uint16_t(u >> 16 | 0x40) : uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
            memcpy(out + 2 * k, &narrow, 2);
        }
    }
}

constexpr int64_t GATHERED = 8;  // rows of a task

void gather_rows(void* job, int64_t index) {
    const Gather& j = *(const Gather*)job;
    const int64_t bytes = j.type == Type::bf16 ? 2 : 4, row_bytes = j.w->k * bytes;
    for (int64_t i = index * GATHERED; i < (index + 1) * GATHERED && i < j.count; ++i) {
        uint8_t* out = j.out + i * row_bytes;
        const int64_t row = j.tokens[i];
        if (row < 0 || row >= j.w->n) {
            memset(out, 0, row_bytes);
            continue;
        }
        if (j.w->form == Form::dense12) {
            j.kernels->row_of_dense12(*j.w, row, (uint16_t*)out);
            continue;
        }
        if (j.w->form != Form::dense) {
            decode_row(j, row, out);
            continue;
        }
        const uint32_t* from = (const uint32_t*)(j.w->data + row / PANEL * j.w->panel_bytes) + row % PANEL;
        int64_t at = 0;
        for (; at + 4 <= row_bytes; at += 4, from += PANEL) memcpy(out + at, from, 4);
        memcpy(out + at, from, row_bytes - at);
    }
}

}  // namespace

// Rows of a weight [n, k] as they were before they were packed, or decoded: out [count, k] of `type`, a dense weight's own. Of a
// row there is none of, 0.
EXPORT void thalweg_gather(Context* c, const Weight* w, int type, const int32_t* tokens, int64_t count, void* out) {
    Gather j{c->kernels, w, Type(type), tokens, count, (uint8_t*)out};
    run(c->pool, (count + GATHERED - 1) / GATHERED, gather_rows, &j);
}
