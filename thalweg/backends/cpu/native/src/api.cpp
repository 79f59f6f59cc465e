// The plain C interface, and the choice of instruction set. Pointers are trusted: the Python side checks shapes and types.
// One thread at a time drives a context.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(HAS_AMX) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "context.h"

namespace thalweg {
Pool* pool_open(int threads);
void pool_close(Pool* p);
}  // namespace thalweg

using namespace thalweg;

namespace {

constexpr int ABI = 37;

#if defined(HAS_AMX)
// Does the processor have tiles, of bfloat16 and of integers, and the system let this process use them? It does once it is asked.
bool tiles_there() {
#if defined(EMULATED_AMX)  // ci/emulate
    return true;
#elif defined(__linux__)
    unsigned a, b, c, d = 0;
    constexpr unsigned NEEDED = 1u << 22 | 1u << 24 | 1u << 25;
    constexpr long REQUEST = 0x1023, TILES = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & NEEDED) == NEEDED && !syscall(SYS_arch_prctl, REQUEST, TILES);
#else
    return false;
#endif
}
#endif

#if defined(__aarch64__)
// What the processor has beyond NEON, which every one of these has.
struct Features {
    bool dot, bf16;  // products of fours of bytes, and of pairs of bfloat16 (with bytes of which one side has no sign)
};
Features features() {
#if defined(__APPLE__)
    auto has = [](const char* name) {
        int value = 0;
        size_t bytes = sizeof value;
        return !sysctlbyname(name, &value, &bytes, nullptr, 0) && value;
    };
    return {has("hw.optional.arm.FEAT_DotProd"), has("hw.optional.arm.FEAT_BF16") && has("hw.optional.arm.FEAT_I8MM")};
#elif defined(__linux__)
    constexpr unsigned long DOT = 1ul << 20, I8MM = 1ul << 13, BF16 = 1ul << 14;  // the last two of HWCAP2
    const unsigned long more = getauxval(AT_HWCAP2);
    return {(getauxval(AT_HWCAP) & DOT) != 0, (more & I8MM) && (more & BF16)};
#else
    return {false, false};
#endif
}
#endif

#if defined(__x86_64__)
// What the processor has, as far as the system saves its registers. Read from the processor: Zig's runtime does not fill what
// `__builtin_cpu_supports` reads, and would leave its libraries with the portable set.
struct Processor {
    bool avx2, avx512, vnni, bf16;
};
Processor processor() {
    constexpr unsigned OSXSAVE = 1u << 27, FMA_F16C = 1u << 12 | 1u << 29, AVX2 = 1u << 5;
    constexpr unsigned F_DQ_BW_VL = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31, VNNI = 1u << 11, BF16 = 1u << 5;
    constexpr unsigned YMM = 0x6, ZMM = 0xe6;  // of XCR0: what the system saves
    unsigned a, b, c, d, saved, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE)) return {};
    const bool fma = (c & FMA_F16C) == FMA_F16C;
    asm volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return {};
    Processor has{};
    has.avx2 = (saved & YMM) == YMM && fma && (b & AVX2);
    has.avx512 = has.avx2 && (saved & ZMM) == ZMM && (b & F_DQ_BW_VL) == F_DQ_BW_VL;
    has.vnni = has.avx512 && (c & VNNI);
    has.bf16 = has.vnni && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & BF16);
    return has;
}
#endif

#if defined(HAS_AVXVNNI)
// Has the processor VNNI at 256 bits? Compilers that know the instructions do not all know this name of a feature.
bool narrow_vnni() {
#if defined(EMULATED_VNNI)  // ci/emulate
    return true;
#else
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
#endif
}
#endif

constexpr unsigned ZEN4 = 0x19, ZEN5 = 0x1a;  // Zen 3 has the first, too, and no AVX512
// AMD's number of this family of processors, or 0 of another maker's.
unsigned family() {
#if defined(__x86_64__)
    constexpr unsigned AMD = 0x68747541;  // "Auth"
    unsigned a, b, c, d;
    if (__get_cpuid(0, &a, &b, &c, &d) && b == AMD && __get_cpuid(1, &a, &b, &c, &d)) return (a >> 8 & 15) + (a >> 20 & 255);
#endif
    return 0;
}

// See Context. Measured: Zen 5 does, and takes 0.8 to 0.9 of the time. Zen 4 does not. Of others it is not known.
bool follows() { return family() == ZEN5; }

// See Linear. Measured with AVX512: Zen 4 multiplies by weights in its second cache as fast as by those in the first, and what a block costs
// comes less often. int8 takes 0.95 to 0.98 of the time, bfloat16 0.96 to 1. Zen 5 was measured with int8 and blocks of this size
// at most (0.98). An Intel processor lost. Others keep to blocks that fit the first cache.
int64_t least_block() { return family() == ZEN4 ? 128 << 10 : family() == ZEN5 ? 32 << 10 : 0; }

// See Linear. Zen 4 takes 0.94 to 0.98 of the time by it with int4. Zen 5 is built alike, and was not measured.
bool beside() { return family() == ZEN4 || family() == ZEN5; }

// Best first.
struct Level {
    const Kernels* kernels;
    bool there;
};
int levels(Level* out) {
    int n = 0;
#if defined(__x86_64__)
    [[maybe_unused]] const Processor has = processor();
#if defined(EMULATED_AVX512)  // ci/emulate
    [[maybe_unused]] const bool avx512 = true, vnni = true;
#else
    [[maybe_unused]] const bool avx512 = has.avx512, vnni = has.vnni;
#endif
#if defined(EMULATED_BF16)  // ci/emulate
    [[maybe_unused]] const bool bf16 = vnni;
#else
    [[maybe_unused]] const bool bf16 = has.bf16;
#endif
#if defined(HAS_AVX512BF16)
    out[n++] = {&avx512bf16_kernels, bf16};
#endif
#if defined(HAS_AVX512VNNI)
    out[n++] = {&avx512vnni_kernels, vnni};
#endif
#if defined(HAS_AVX512)
    out[n++] = {&avx512_kernels, avx512};
#endif
    [[maybe_unused]] const bool avx2 = has.avx2;
#if defined(HAS_AVXVNNI)
    out[n++] = {&avxvnni_kernels, avx2 && narrow_vnni()};
#endif
#if defined(HAS_AVX2)
    out[n++] = {&avx2_kernels, avx2};
#endif
#endif
#if defined(__aarch64__)
    [[maybe_unused]] const Features has = features();
#if defined(HAS_NEONBF16)
    out[n++] = {&neonbf16_kernels, has.dot && has.bf16};
#endif
#if defined(HAS_NEONDOT)
    out[n++] = {&neondot_kernels, has.dot};
#endif
#if defined(HAS_NEON)
    out[n++] = {&neon_kernels, true};
#endif
#endif
    out[n++] = {&portable_kernels, true};
#if defined(HAS_AMX)
    // Last, so that it is taken where it is asked for: no processor has run it, only an emulation.
    out[n++] = {&amx_kernels, bf16 && tiles_there()};
#endif
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
        if (all[i].there && (!level[0] || !strcmp(level, all[i].kernels->name)))
            return new Context{pool_open(threads), all[i].kernels, nullptr, 0, follows(), least_block(), beside()};
    return nullptr;
}

EXPORT void thalweg_close(Context* c) {
    pool_close(c->pool);
    free(c->scratch);
    delete c;
}

EXPORT const char* thalweg_level(Context* c) { return c->kernels->name; }

// Operations done by every thread multiplying and adding in registers for so many rounds. 0: no instruction for this
// kind.
EXPORT int64_t thalweg_peak(Context* c, int kind, int64_t rounds) {
    Peak j{kind, rounds};
    const int64_t tasks = int64_t(pool_threads(c->pool)) * 8, each = c->kernels->peak_operations[kind];
    if (each) run(c->pool, tasks, c->kernels->peak, &j);
    return tasks * rounds * each;
}

namespace {

struct Reading {
    const uint8_t* at;
    int64_t bytes;
    std::atomic<uint64_t> sum;
};
constexpr int64_t READ_AT_ONCE = 1 << 20;
void read_some(void* job, int64_t index) {
    Reading& j = *(Reading*)job;
    const uint8_t* p = j.at + index * READ_AT_ONCE;
    const int64_t left = j.bytes - index * READ_AT_ONCE, bytes = left < READ_AT_ONCE ? left : READ_AT_ONCE;
    uint64_t sums[8] = {};
    for (int64_t i = 0; i < bytes; i += 64)
        for (int w = 0; w < 8; ++w) {
            uint64_t word;
            memcpy(&word, p + i + w * 8, 8);
            sums[w] += word;
        }
    for (uint64_t s : sums) j.sum.fetch_add(s, std::memory_order_relaxed);
}

}  // namespace

// Reads memory in the order in which it lies, by all threads, and does next to nothing with it. bytes: a multiple of 64. The sum of
// its words.
EXPORT int64_t thalweg_read(Context* c, const void* at, int64_t bytes) {
    Reading j{(const uint8_t*)at, bytes, {0}};
    run(c->pool, (bytes + READ_AT_ONCE - 1) / READ_AT_ONCE, read_some, &j);
    return int64_t(j.sum.load());
}

// Runs one of the tasks of inputs.inc. Sixteen rows are enough for a task, and fewer where all threads would not have one. But
// rows of a few numbers are not worth another thread.
static void prepare(Context* c, Quantise& q, Task task) {
    const int64_t share = (q.m + pool_threads(c->pool) - 1) / pool_threads(c->pool), least = 4096 / q.k + 1;
    q.per_task = share > 16 ? 16 : share > least ? share : least;
    run(c->pool, (q.m + q.per_task - 1) / q.per_task, task, &q);
}

// Rows of a linear layer's input, made ready in `room` where they do not fit as they are.
size_t thalweg::make_ready(Context* c, const Weight* w, Type type, const void* x, int64_t m, uint8_t* room, Linear& j) {
    const bool sums = w->offsets.at != nullptr, rounds = w->form == Form::int8_rows;
    const int64_t planes = w->form == Form::int4_groups || w->form == Form::int8_groups ? 1 : w->quads && type == Type::bf16 ? 2 : 0;
    const bool integers = w->form == Form::int8 || w->form == Form::int6 || w->form == Form::int4;
    const bool sixteens = integers && !w->quads && type == Type::bf16 && c->kernels->sixteens;
    const bool widens = !rounds && !planes && !sixteens && type == Type::bf16 && c->kernels->widen_rows;
    const int64_t bytes = type == Type::bf16 && !widens ? 2 : 4, unit = unit_of(w);
    const bool pads = !rounds && !planes && !sixteens && !widens && w->k % unit;
    j.w = w, j.type = type, j.m = m, j.least_block = c->least_block, j.beside = c->beside;
    j.steps = (w->k + unit - 1) / unit;
    const bool wide = rounds && c->kernels->quad_words > 1;
    j.row_words = rounds ? j.steps * c->kernels->quad_words : planes || sixteens ? j.steps : j.steps * unit * bytes / 4;
    // Rows whose distance is a multiple of 4 KiB would take each other's places in the nearest cache.
    if (widens || planes || sixteens || wide) j.row_words = int64_t(up(j.row_words, 16)) | 16;
    j.words = (const uint32_t*)x;
    const bool copies = rounds || planes || sixteens || widens || pads;
    if (!sums && !copies && w->act == Act::none) return 0;
    const bool keeps = rounds && w->act == Act::kept;
    const size_t rounded = !rounds_floats(w->act) ? 0 : up(m * w->k * (type == Type::bf16 ? 2 : 4), 64);
    const size_t rows = copies ? up(m * j.row_words * 4 * (planes ? planes : 1), 64) : 0, scales = up(m * 4 * (planes || sixteens ? w->groups : 1), 64);
    const size_t groups = sums || planes ? up(m * w->groups * 4, 64) : 0, kept = keeps ? up(m * sizeof(Kept), 64) : 0;
    const size_t all = rounded + rows + scales + groups * (1 + planes) + kept;
    if (!room) return all;
    if (rounded) {
        Quantise q{};
        q.type = type, q.x = x, q.m = m, q.k = w->k, q.codes = room, q.scale = w->act == Act::float8_static ? w->input_scale : 0;
        q.group = w->act == Act::float8_groups ? w->group : w->k;
        prepare(c, q, c->kernels->round_floats);
        j.words = (const uint32_t*)(x = room), room += rounded;
    }
    if (rows) j.words = (const uint32_t*)room;
    float* after = (float*)(room + rows);
    Quantise q{j.type, x, m, w->k, w->group, w->groups, j.row_words, room, after, after + scales / 4,
               (int32_t*)after + (scales + groups) / 4, 0, 0, keeps ? (Kept*)(room + (all - rounded - kept)) : nullptr};
    j.kept = q.kept;
    if (rounds) prepare(c, q, c->kernels->quantise_rows);
    if (widens) prepare(c, q, c->kernels->widen_rows);
    if (planes) prepare(c, q, planes == 1 ? c->kernels->round_groups : c->kernels->planes);
    if (sixteens) prepare(c, q, c->kernels->sixteens);
    if (sums && !planes) prepare(c, q, c->kernels->group_sums);
    for (int64_t r = 0; r < m && pads; ++r) {
        uint8_t* to = room + r * j.row_words * 4;
        memcpy(to, (const uint8_t*)x + r * w->k * bytes, w->k * bytes);
        memset(to + w->k * bytes, 0, j.row_words * 4 - w->k * bytes);
    }
    j.row_scales = q.row_scales, j.group_sums = q.sums, j.plane_sums = q.plane_sums;
    return all;
}

namespace {

// Some rows of a linear layer. best: where y is null.
void linear_rows(Context* c, const Weight* w, Type type, const void* x, int64_t m, const void* bias, void* y, Best* best) {
    Linear j{};
    const size_t bytes = make_ready(c, w, type, x, m, nullptr, j);
    if (bytes) make_ready(c, w, type, x, m, (uint8_t*)c->room(bytes), j);
    j.bias = bias, j.y = y, j.best = best;
    // Tasks small enough to share evenly, large enough that taking one costs nothing.
    int threads = pool_threads(c->pool);
    int64_t work = int64_t(w->panel_bytes) + m * w->k;
    int64_t even = w->panels / (threads * 4), cheap = (int64_t(128) << 10) / work;
    int64_t per = even < cheap ? even : cheap;
    j.panels_per_task = per > 1 ? per : 1;
    j.panels_ahead = (threads - 1) * j.panels_per_task + 1;
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

// y [m, n] = x [m, k] * w^T + bias [n] (or null), rows contiguous. type: of all three, that of a dense weight.
EXPORT void thalweg_linear(Context* c, const Weight* w, int type, const void* x, int64_t m, const void* bias, void* y) {
    linear(c, w, Type(type), x, m, bias, y, nullptr);
}

// The argmax of each row of that y, which is not written: its place [m], of equals the first, and its value [m], NaN if
// one is. room: 8 bytes for each row and 64 outputs.
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

constexpr int64_t SHARES = 4;  // a piece is at most this part of what a thread has to do, so that all end at about the same time

// Cuts tasks of one query token that are longer than a piece may be. A piece is at least a segment.
void cut(Context* c, Attending& j) {
    const Attention& a = j.attention;
    auto high = [&a](const int32_t* task) { return int64_t(a.context[task[0]]) + task[2] + 1; };
    auto low = [&](const int32_t* task) { return first_seen(a, high(task) - 1); };
    int64_t keys = 0, longest = 0;
    for (const int32_t *task = a.tasks, *end = task + a.task_count * 4; task < end; task += 4) {
        int64_t n = high(task) - low(task);
        keys += n * task[3];
        if (task[3] == 1 && n > longest) longest = n;
    }
    const int64_t fair = keys / (pool_threads(c->pool) * SHARES), per = fair > SEGMENT ? (fair + SEGMENT - 1) / SEGMENT : 1;
    if (longest <= (per - 1) * SEGMENT + 1) return;  // even that lies in no more than `per` segments
    auto segments = [&](const int32_t* task) {
        return task[3] > 1 ? 1 : (high(task) - 1) / SEGMENT - low(task) / SEGMENT + 1;
    };
    int64_t slots = 0, parts = 0;
    for (int64_t i = 0; i < a.task_count; ++i)
        if (int64_t n = segments(a.tasks + i * 4); n > per) ++j.cut_count, slots += n, parts += (n + per - 1) / per;
    if (!j.cut_count) return;
    j.piece_count = parts + a.task_count - j.cut_count;
    j.slot_floats = slot_floats(a.heads / a.kv_heads, out_width(a));
    j.sums = (float*)c->room(slots * j.slot_floats * 4 + (j.piece_count + j.cut_count) * sizeof(Piece));
    Piece *part = (Piece*)(j.sums + slots * j.slot_floats), *whole = part + parts, *cuts = part + j.piece_count;  // long ones first
    j.pieces = part, j.cuts = cuts, slots = 0;
    for (int32_t i = 0; i < a.task_count; ++i) {
        const int32_t* task = a.tasks + int64_t(i) * 4;
        const int64_t n = segments(task), from = low(task) / SEGMENT;
        if (n <= per) {
            *whole++ = {i, 0, 0, -1};
            continue;
        }
        *cuts++ = {i, int32_t(from), int32_t(from + n), int32_t(slots)};
        for (int64_t s = 0; s < n; s += per)
            *part++ = {i, int32_t(from + s), int32_t(from + (s + per < n ? s + per : n)), int32_t(slots + s)};
        slots += n;
    }
}

}  // namespace

// Store keys and values of the step's tokens, then attend. Rows of sequences that no task names are not written.
EXPORT void thalweg_attend(Context* c, const Attention* a) {
    Attending j{*a};
    j.ahead = pool_threads(c->pool), j.follows = c->follows;
    run(c->pool, (a->tokens + a->per_task - 1) / a->per_task, a->latent ? c->kernels->write_latents : c->kernels->write_kv,
        &j.attention);
    if (pool_threads(c->pool) > 1 && !a->both && !a->last) cut(c, j);  // what sees ahead is a prompt, in tasks enough
    run(c->pool, j.pieces ? j.piece_count : a->task_count, a->latent ? c->kernels->attend_latents : c->kernels->attend, &j);
    run(c->pool, j.cut_count, c->kernels->merge, &j);
}

namespace {

// Rows cost about `bytes` each: a task is worth handing to another thread from 32 KiB on.
void by_rows(Context* c, Rows& j, Task task, int64_t bytes) {
    int64_t share = (j.rows + pool_threads(c->pool) - 1) / pool_threads(c->pool), least = (int64_t(32) << 10) / (bytes + 1) + 1;
    j.per_task = share > least ? share : least;
    if (j.rows > 0) run(c->pool, (j.rows + j.per_task - 1) / j.per_task, task, &j);
}

}  // namespace

// y = x / rms(x) * (weight + offset). With a residual, of total = x + residual. x [outer, inner, width], the outer
// `outer_stride` apart, and the rest contiguous.
EXPORT void thalweg_norm(Context* c, int type, const void* x, int64_t outer, int64_t inner, int64_t width, int64_t outer_stride,
                         const void* residual, const void* weight, float eps, float offset, void* y, void* total) {
    Rows j{};
    j.type = Type(type), j.x = x, j.residual = residual, j.weight = weight, j.y = y, j.total = total;
    j.rows = outer * inner, j.width = width, j.inner = inner, j.outer_stride = outer_stride, j.eps = eps, j.offset = offset;
    by_rows(c, j, c->kernels->norm, width * 8);
}

// y = x / rms(x) * weight * silu(gate). x, gate and y [rows, width].
EXPORT void thalweg_gated_norm(Context* c, int type, const void* x, const void* gate, int64_t rows, int64_t width, const void* weight,
                               float eps, void* y) {
    Rows j{};
    j.type = Type(type), j.x = x, j.residual = gate, j.weight = weight, j.y = y, j.rows = rows, j.width = width, j.inner = 1;
    j.eps = eps;
    by_rows(c, j, c->kernels->gated_norm, width * 24);
}

// Of each of `groups` groups of a row, [width] each: x silu(gate) / rms * weight, or x / rms * weight * silu(gate) (norm_first).
// x and y [rows, groups, width], weight [groups, width], rows of gate `gate_stride` apart.
EXPORT void thalweg_group_norm(Context* c, int type, const void* x, const void* gate, int64_t rows, int64_t groups, int64_t width,
                               int64_t gate_stride, const void* weight, float eps, int norm_first, void* y) {
    Rows j{};
    j.type = Type(type), j.x = x, j.residual = gate, j.weight = weight, j.y = y, j.rows = rows * groups, j.width = width;
    j.inner = groups, j.other_stride = gate_stride, j.eps = eps, j.act = norm_first;
    by_rows(c, j, c->kernels->group_norm, width * 32);
}

// y [rows, width] = act(x[:, :width]) * x[:, width:], or of x [rows, width] act(x). most, most_up: see Rows.
EXPORT void thalweg_gate(Context* c, int type, const void* x, int64_t rows, int64_t width, int act, float most, float most_up,
                         void* y) {
    Rows j{};
    j.type = Type(type), j.x = x, j.y = y, j.rows = rows, j.width = width, j.inner = 1, j.act = act;
    j.most = most, j.most_up = most_up;
    by_rows(c, j, c->kernels->gate, width * 16);
}

// y = (x - mean) / deviation * (weight + offset) + bias. x and y [rows, width], weight and bias [width] or null.
EXPORT void thalweg_layer_norm(Context* c, int type, const void* x, int64_t rows, int64_t width, const void* weight, const void* bias,
                               float eps, float offset, void* y) {
    Rows j{};
    j.type = Type(type), j.x = x, j.y = y, j.rows = rows, j.width = width, j.inner = 1, j.weight = weight, j.residual = bias;
    j.eps = eps, j.offset = offset;
    by_rows(c, j, c->kernels->layer_norm, width * 16);
}

// y = x * sigmoid(gate). x and y [outer, inner, width], gate [outer, inner, width or 1], the outer apart by the strides.
EXPORT void thalweg_sigmoid_gate(Context* c, int type, const void* x, int64_t outer, int64_t inner, int64_t width, int64_t stride,
                                 const void* gate, int64_t gate_width, int64_t gate_stride, void* y) {
    Rows j{};
    j.type = Type(type), j.x = x, j.residual = gate, j.y = y, j.rows = outer * inner, j.width = width, j.inner = inner;
    j.outer_stride = stride, j.other_inner = gate_width, j.other_stride = gate_stride;
    by_rows(c, j, c->kernels->sigmoid_gate, width * 16);
}

// q [tokens, heads, width] and k [tokens, other, width] rotated by their positions. table float32 [positions, rotary]:
// cos, sin. pairs: what turns together lies side by side, not half of `rotary` apart.
EXPORT void thalweg_turn(Context* c, int type, const void* q, const void* k, int64_t tokens, int64_t heads, int64_t other,
                         int64_t width, int64_t q_stride, int64_t k_stride, const int32_t* positions, const float* table,
                         int64_t rotary, int pairs, void* q_out, void* k_out) {
    Rows j{};
    j.type = Type(type), j.x = q, j.residual = k, j.weight = table, j.y = q_out, j.total = k_out, j.rows = tokens;
    j.width = width, j.inner = heads, j.other_inner = other, j.outer_stride = q_stride, j.other_stride = k_stride;
    j.rotary = rotary, j.positions = positions, j.act = pairs;
    by_rows(c, j, c->kernels->turn, (heads + other) * width * 8);
}

// The gated delta rule; see Delta.
EXPORT void thalweg_delta(Context* c, Delta* j) { run(c->pool, j->seqs * j->heads, c->kernels->delta, j); }

// The recurrences of Mamba-2 and of Mamba; see Ssd and Scan.
EXPORT void thalweg_ssd(Context* c, Ssd* j) { run(c->pool, j->seqs * j->heads, c->kernels->ssd, j); }
EXPORT void thalweg_scan(Context* c, Scan* j) {
    j->parts = (j->channels + SCAN_CHANNELS - 1) / SCAN_CHANNELS;
    run(c->pool, j->seqs * j->parts, c->kernels->scan, j);
}

// A short causal convolution of each channel, then silu or nothing; see Conv. As with rows, a task is worth handing over from some size on:
// a sequence that decodes has a token or two for each piece.
EXPORT void thalweg_conv(Context* c, Conv* j) {
    j->parts = (j->channels + CONV_CHANNELS - 1) / CONV_CHANNELS;
    const int64_t all = j->seqs * j->parts, tokens = j->last[j->seqs - 1] + 1;
    j->per_task = (int64_t(128) << 10) / (1 + tokens / j->seqs * CONV_CHANNELS * 16) + 1;
    run(c->pool, (all + j->per_task - 1) / j->per_task, c->kernels->conv, j);
}

// The place of the largest of each row, of equals the first: x float32 [rows, width] -> y [rows].
EXPORT void thalweg_best(Context* c, const float* x, int64_t rows, int64_t width, int32_t* y) {
    Rows j{};
    j.x = x, j.y = y, j.rows = rows, j.width = width, j.inner = 1;
    by_rows(c, j, c->kernels->best, width * 4);
}

// A token of each row of logits [rows, width]: temperature, truncation and draw in one (see Draw). Null where not asked
// for.
EXPORT void thalweg_draw(Context* c, const float* logits, int64_t rows, int64_t width, const float* temperature, int divides,
                         const int32_t* top_k, const float* top_p, const float* min_p, const int32_t* seed,
                         const int32_t* position, float* kept, int32_t* tokens, float* most) {
    Draw j{};
    j.logits = logits, j.rows = rows, j.width = width, j.temperature = temperature, j.divides = divides;
    j.top_k = top_k, j.top_p = top_p, j.min_p = min_p, j.seed = seed, j.position = position;
    j.kept = kept, j.tokens = tokens, j.most = most;
    j.tasks = rows < pool_threads(c->pool) ? rows : pool_threads(c->pool), j.room_bytes = draw_bytes(width);
    j.room = (uint8_t*)c->room(j.tasks * j.room_bytes);
    run(c->pool, j.tasks, c->kernels->draw, &j);
}

// Of each row of logits [rows, width]: token, rank and value of the one chosen, and the k <= width largest. ids, values
// [rows, 1 + k].
EXPORT void thalweg_logprobs(Context* c, const float* logits, const int32_t* tokens, int64_t rows, int64_t width, int64_t k,
                             int normalises, int32_t* ids, float* values, int32_t* ranks) {
    Logprobs j{logits, tokens, width, k, normalises, ids, ranks, values};
    run(c->pool, rows, c->kernels->logprobs, &j);
}

// history [slots, known]. The rest has one per row of logits [rows, width]. out may not overlap logits.
EXPORT void thalweg_penalties(Context* c, const float* logits, int64_t rows, int64_t width, const int32_t* history, int64_t known,
                              const int32_t* slots, const int32_t* lengths, const int32_t* prompt_len, const float* repetition,
                              const float* presence, const float* frequency, float* out) {
    Penalties j{logits, repetition, presence, frequency, history, slots, lengths, prompt_len, rows, width, known, out};
    j.tasks = rows < pool_threads(c->pool) ? rows : pool_threads(c->pool);
    j.room = (int32_t*)c->room(j.tasks * width * 4);
    run(c->pool, j.tasks, c->kernels->penalties, &j);
}

namespace {

constexpr int WORDS = 22;  // of an entry of a recorded step: the number of a function, and its arguments after the context

float as_float(int64_t word) {
    int32_t low = int32_t(word);
    float f;
    memcpy(&f, &low, 4);
    return f;
}

}  // namespace

// The calls of a recorded step once more, in order, without a word between them to whoever recorded them. 0, or the failure of an
// exchange with other ranks, at which it ends.
EXPORT int thalweg_replay(Context* c, const int64_t* entries, int64_t n) {
    for (const int64_t *e = entries, *end = entries + n * WORDS; e < end; e += WORDS) {
        const int64_t* a = e + 1;
        auto at = [a](int i) { return (void*)a[i]; };
        switch (e[0]) {
            case 0: thalweg_linear(c, (const Weight*)at(0), int(a[1]), at(2), a[3], at(4), at(5)); break;
            case 1: thalweg_attend(c, (const Attention*)at(0)); break;
            case 2:
                thalweg_norm(c, int(a[0]), at(1), a[2], a[3], a[4], a[5], at(6), at(7), as_float(a[8]), as_float(a[9]),
                                 at(10), at(11));
                break;
            case 3: thalweg_gate(c, int(a[0]), at(1), a[2], a[3], int(a[4]), as_float(a[5]), as_float(a[6]), at(7)); break;
            case 4:
                thalweg_turn(c, int(a[0]), at(1), at(2), a[3], a[4], a[5], a[6], a[7], a[8], (const int32_t*)at(9),
                             (const float*)at(10), a[11], int(a[12]), at(13), at(14));
                break;
            case 5: thalweg_best(c, (const float*)at(0), a[1], a[2], (int32_t*)at(3)); break;
            case 6:
                thalweg_largest(c, (const Weight*)at(0), int(a[1]), at(2), a[3], at(4), at(5), (int32_t*)at(6), (float*)at(7));
                break;
            case 7: thalweg_gather(c, (const Weight*)at(0), int(a[1]), (const int32_t*)at(2), a[3], at(4)); break;
            case 8:
                thalweg_draw(c, (const float*)at(0), a[1], a[2], (const float*)at(3), int(a[4]), (const int32_t*)at(5),
                             (const float*)at(6), (const float*)at(7), (const int32_t*)at(8), (const int32_t*)at(9),
                             (float*)at(10), (int32_t*)at(11), (float*)at(12));
                break;
            case 9:
                thalweg_logprobs(c, (const float*)at(0), (const int32_t*)at(1), a[2], a[3], a[4], int(a[5]), (int32_t*)at(6),
                                 (float*)at(7), (int32_t*)at(8));
                break;
            case 10:
                thalweg_penalties(c, (const float*)at(0), a[1], a[2], (const int32_t*)at(3), a[4], (const int32_t*)at(5),
                                  (const int32_t*)at(6), (const int32_t*)at(7), (const float*)at(8), (const float*)at(9),
                                  (const float*)at(10), (float*)at(11));
                break;
            case 11:
                thalweg_experts(c, (const Weight*)at(0), (const Weight*)at(1), a[2], a[3], int(a[4]), as_float(a[5]), as_float(a[6]),
                                int(a[7]), at(8), a[9], (const int32_t*)at(10), (const float*)at(11), a[12], at(13), at(14));
                break;
            case 12:
                thalweg_route(c, (const float*)at(0), (const float*)at(1), a[2], a[3], a[4], int(a[5]), int(a[6]), as_float(a[7]),
                              a[8], a[9], a[10], (int32_t*)at(11), (float*)at(12));
                break;
            case 13: thalweg_gated_norm(c, int(a[0]), at(1), at(2), a[3], a[4], at(5), as_float(a[6]), at(7)); break;
            case 14: thalweg_heads(c, (const Weight*)at(0), a[1], a[2], int(a[3]), at(4), a[5], a[6], a[7], at(8)); break;
            case 15:
                thalweg_group_norm(c, int(a[0]), at(1), at(2), a[3], a[4], a[5], a[6], at(7), as_float(a[8]), int(a[9]), at(10));
                break;
            case 16:
                if (const int failed = thalweg_all_reduce(c, (Ranks*)at(0), int(a[1]), at(2), a[3], at(4))) return failed;
                break;
            case 17:
                if (const int failed = thalweg_all_gather(c, (Ranks*)at(0), at(1), a[2], a[3], at(4))) return failed;
                break;
            case 18:
                thalweg_lora_rows(c, (const int32_t*)at(0), (const int32_t*)at(1), (const int32_t*)at(2), a[3], a[4], (int32_t*)at(5),
                                  (int32_t*)at(6), (int32_t*)at(7));
                break;
            case 19:
                thalweg_lora_add(c, int(a[0]), at(1), at(2), a[3], a[4], (const int32_t*)at(5), (const int32_t*)at(6), a[7], at(8),
                                 at(9), (const int32_t*)at(10), (const int64_t*)at(11), a[12], a[13]);
                break;
            case 20: thalweg_lora_rescale(c, int(a[0]), at(1), (const int32_t*)at(2), (const float*)at(3), a[4], a[5]); break;
            case 21:
                thalweg_lora_experts(c, (const Weight*)at(0), (const Weight*)at(1), a[2], a[3], int(a[4]), as_float(a[5]),
                                     as_float(a[6]), int(a[7]), at(8), a[9], (const int32_t*)at(10), (const float*)at(11), a[12], at(13),
                                     (const int32_t*)at(14), at(15), at(16), at(17), at(18), (const int32_t*)at(19), a[20]);
                break;
            case 22:
                thalweg_layer_norm(c, int(a[0]), at(1), a[2], a[3], at(4), at(5), as_float(a[6]), as_float(a[7]), at(8));
                break;
            case 23:
                thalweg_sigmoid_gate(c, int(a[0]), at(1), a[2], a[3], a[4], a[5], at(6), a[7], a[8], at(9));
                break;
            case 24: thalweg_decays(c, (Decays*)at(0)); break;
            case 25: thalweg_read_chosen(c, (Reads*)at(0)); break;
            case 26: thalweg_choose(c, (const Choice*)at(0)); break;
            case 27: thalweg_pool(c, (Pooling*)at(0)); break;
            case 28: thalweg_hyper(c, (Hyper*)at(0)); break;
            case 29: thalweg_delta(c, (Delta*)at(0)); break;
            case 30: thalweg_conv(c, (Conv*)at(0)); break;
            case 31: thalweg_scan(c, (Scan*)at(0)); break;
            default: abort();
        }
    }
    return 0;
}
