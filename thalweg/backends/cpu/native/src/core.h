// What every file of the library shares: weights in packed form, jobs, and the table of kernels one instruction set provides.
#pragma once
#include <cstddef>
#include <cstdint>

namespace thalweg {

enum class Type : int32_t { bf16 = 0, f32 = 1 };
// int8_rows: inputs are rounded to int8 row by row. int4_groups, int8_groups: each of the weight's groups of a row on its own.
// table: 4-bit codes that name one of 16 levels. float8: e4m3. int6: codes of int8 of which 6 bits suffice.
// dense12: dense bfloat16 in about 12 bits, without loss (dense12.inc).
enum class Form : int32_t { dense = 0, int8 = 1, int4 = 2, int8_rows = 3, int4_groups = 4, table = 5, float8 = 6, int6 = 7, int8_groups = 8, dense12 = 9 };
constexpr int bits_of(Form form) { return form == Form::int4 || form == Form::int4_groups || form == Form::table ? 4 : 8; }  // of a code
constexpr bool scales_are_halves(Form form) { return bits_of(form) == 4 || form == Form::int8_groups; }  // of what is rounded here
constexpr int middle_of(Form form) { return 1 << (bits_of(form) - 1); }
constexpr int base_of(Form form) { return form == Form::int4_groups ? 0 : middle_of(form); }  // what offsets are counted from
// What a row of the input becomes before it is multiplied: the nearest 8-bit floats, by a scale of the row, of each of
// the weight's groups, or of the weight. kept: of int8_rows, a few inputs of a row keep their values (`Kept`).
enum class Act : int32_t { none = 0, float8_rows = 1, float8_groups = 2, float8_static = 3, kept = 4 };
constexpr bool rounds_floats(Act act) { return act != Act::none && act != Act::kept; }

// Inputs of a row multiplied unrounded: those above the fifth largest magnitude, by which the row is scaled.
constexpr int KEPT = 4;
struct Kept {
    int32_t count, at[KEPT];
    float value[KEPT];
};

constexpr int PANEL = 64;  // outputs packed side by side: the unit of work of a linear layer

// A number for each group and output, [panels, groups, 64], in the least memory that keeps all of them exactly.
// bytes: int8, times a unit for so many groups (1 << per) of an output, [panels, groups >> per, 64].
enum class Held : int32_t { none = 0, f32 = 1, f16 = 2, bf16 = 3, bytes = 4 };
constexpr int bytes_of(Held held) { return held == Held::f32 ? 4 : held == Held::bytes ? 1 : held == Held::none ? 0 : 2; }
struct Numbers {
    Held held;
    int per;
    void* at;
    float* units;  // null: units are the groups' scales
    float* f32() const { return (float*)at; }
};

// A weight matrix [n, k] in panels of 64 outputs. Within a panel, step u holds what 64 outputs multiply with one 32-bit
// word of a row of the input: one float32, two bfloat16 or four int8. int8 and float8 (weight only) hold bytes in the
// order of a bfloat16 step. int4 and table hold 64 bytes for two inputs: 32 words of 16 bits, whose nibble c is the
// code of the word's place in quarter c of a step. int6 has the lower four bits of codes so, and behind them 32 bytes
// with two more bits of each, the byte's bits 2c and 2c + 1 for quarter c.
// In quads (int4_groups, int8_groups, and int8 and int4 where integer products serve them) a step is four inputs, of codes without
// sign. 8-bit codes take a byte each. 4-bit codes take 128 bytes: byte i of the halves holds outputs of quarters 0 and
// 1 in its low nibbles, and of 2 and 3 in its high ones.
struct Weight {
    Form form;
    Type type;  // dense: of the weight, and so of inputs and outputs. The others take either
    int64_t n, k, group, groups, panels;
    size_t panel_bytes;
    bool quads, shifted;  // shifted: codes came with zero points, and without sign
    bool sixteenths;      // of int4_groups rounded here: zero points are multiples of a 16th, held as bfloat16
    uint8_t* data;
    Numbers scales;   // none if dense
    Numbers offsets;  // subtracted. Minima, or zero points in bytes, above `zero_of`. Quads: no minima, but zero points that need not be whole
    int32_t* sums;   // int8_rows: [panels, 64], 128 * sum of the codes of an output
    float* outer;    // [panels, 64] or null: multiplies whole sums of an output
    float levels[16];     // of 4-bit codes, not in quads. int6: the first
    uint16_t halves[32];  // the same as bfloat16, twice, so that the bit above an index does not matter
    Act act;
    float input_scale;  // float8_static
    void* memory;
    size_t bytes;
};

inline int zero_of(const Weight* w) { return w->quads ? base_of(w->form) : middle_of(w->form); }  // zero points are counted from it

// Of a panel of dense12: tables at its beginning, bytes before its first step, and of all of it. The bundled model, which was trained,
// needs up to 11 tables.
constexpr int DENSE12_TABLES = 32;
constexpr int64_t dense12_head(int64_t steps) { return DENSE12_TABLES * 16 + (steps + 63) / 64 * 64; }
constexpr int64_t dense12_bytes(int64_t steps) { return dense12_head(steps) + steps * PANEL * 3; }

constexpr int64_t PLANES_MOST = 32768;  // inputs of a group in quads: their sums stay within 32 bits

struct Pool;
using Task = void (*)(void* job, int64_t index);
void run(Pool* pool, int64_t tasks, Task task, void* job);
int pool_threads(const Pool* pool);

struct Best {  // of some outputs of a row: the largest (NaN if one is), and which it is, of equals the first
    float most;
    int32_t at;
};

// y [m, n] = rows [m, k] * weight^T + bias. `words` are the rows as 32-bit words, zero-filled to whole words.
struct Linear {
    const Weight* w;
    Type type;      // of outputs, and of inputs unless bfloat16 has been made float32
    int64_t steps;  // of the weight
    const uint32_t* words;
    int64_t row_words, m;
    const void* bias;
    void* y;     // or null:
    Best* best;  // [m, panels], of the outputs as y would hold them
    const Kept* kept;         // int8_rows: [m], or null
    const float* row_scales;  // int8_rows: [m]. Inputs in planes, and of 16 bits: [m, groups]
    const float* group_sums;  // with offsets: [m, groups], of inputs or, in planes, of their codes
    const int32_t* plane_sums;  // of planes: [m, groups, planes], of each one's bytes
    int64_t panels_per_task, row_chunks, rows_per_chunk;
    int64_t panels_ahead;  // from the last panel of a task to that which its thread is likely to take next
    int64_t first;         // of the rows before m: the first to multiply
    int64_t y_row;         // numbers from a row of y to the next. 0: n
    int64_t least_block;   // of the processor: bytes of a block of weights that rows meet one after the other, at least
    bool beside;           // of the processor: shifts and sums of integers take no time from products
};

// Attention of query tokens over cached keys and values in blocks. cache.inc says how a block lies in memory.
struct Attention {
    // Of the step (the Python side has the same struct, field by field). rounds: the cache holds int8.
    int64_t type, rounds, heads, kv_heads, dim, size, tokens, seqs, columns, window, chunk, q_stride, k_stride, v_stride;
    int64_t block_bytes;  // from a block to the next
    int64_t latent;  // 0, or: one key for all heads, whose first numbers, so many, are its value (latent.inc)
    int64_t both;    // an encoder's: a token sees those after it too (as many as before it, where there is a window)
    int64_t rotary;  // 0: q and k come rotated. Otherwise rotate so many elements of a head here, after its norm if any
    int64_t pairs;   // of rotation: those that turn together lie side by side
    float scale, softcap, eps, offset;  // offset: of the norms
    const int32_t *table, *token_seq, *positions, *slots, *context, *query, *first;  // first: row of a sequence's first token
    const int32_t* tasks;  // [task_count, 4]: sequence, KV head, first query token, query tokens
    int64_t task_count, per_task;  // per_task: tokens written at once
    // Of the layer. q_weight, k_weight: of the norms, or null. cos_sin: as thalweg_turn's table.
    const void *q, *k, *v, *sinks, *q_weight, *k_weight, *cos_sin;
    void *kv, *out;
    const int32_t* last;  // of the step: the last position that each token sees, if that is after its own; or null
};

inline int64_t out_width(const Attention& j) { return j.latent ? j.latent : j.dim; }
// The first key that a token at this position sees.
inline int64_t first_seen(const Attention& a, int64_t position) {
    if (a.chunk) return position / a.chunk * a.chunk;
    return a.window && position + 1 > a.window ? position + 1 - a.window : 0;
}

// A row's keys are summed in segments of so many, from multiples of it on, and the sums of segments are joined in
// order. So the sum is the same whether one task computes a row's segments or several do. A multiple of 64.
constexpr int64_t SEGMENT = 1024;
constexpr int64_t LANES = 16;  // most that a vector of any instruction set has

struct Piece {
    int32_t task, from, to;  // of the task's keys, the segments from .. to - 1
    int32_t slot;            // where the sums of the first of them go, those of the others after it. -1: the whole task, to the end
};

// Tasks of one query token may be cut into pieces, which leave their sums to be joined.
struct Attending {
    Attention attention;
    const Piece *pieces, *cuts;  // pieces: null if no task is cut. cuts: each cut task, all its segments
    int64_t piece_count, cut_count;
    float* sums;
    int64_t ahead;        // from a piece to that which its thread is likely to take next
    int64_t slot_floats;  // of a slot: for each head `dim` sums of values, then for each LANES sums of weights and the largest score
    bool follows;         // Context::follows
};
constexpr int64_t slot_floats(int64_t share, int64_t dim) { return share * (dim + 2 * LANES); }

constexpr int32_t SWIGLU_OAI = 3;  // gpt-oss's gates, which are cut off
constexpr int32_t RELU2 = 4;       // of what has no gate: x at 0 or above, squared
constexpr int32_t CLAMP = 5;       // silu of a gate that is cut off above at a bound, as what it multiplies is on both sides
constexpr int32_t CUT = 6;         // the same, but silu itself is cut off
constexpr int32_t ALONE = 8;       // added where there is no gate
constexpr int32_t SITU = 7;        // b tanh(gate / b) sigmoid(gate) times c tanh(up / c), or times up where c is 0

// Rows treated one by one (rows.inc). Row r of x: r / inner * outer_stride + r % inner * width elements from its start.
struct Rows {
    Type type;
    const void *x, *residual, *weight;
    void *y, *total;
    int64_t rows, width, inner, outer_stride, per_task;
    float eps, offset;  // of norms
    int32_t act;  // 0 silu, 1 gelu_tanh, 2 gelu, SWIGLU_OAI, RELU2, CLAMP, CUT, SITU; ALONE more: x has no second half. Of rotary positions:
    // 1, pairs lie side by side.
    float most, most_up;  // of gates, the bounds: of CLAMP and CUT the first one, of SITU b and c
    // Of gates: weight, if there is one, is [experts, 2 width], added to both halves by each row's expert, in positions.
    // Rotary positions: x and residual are q and k, with `inner` and `other_inner` heads. weight is the table.
    int64_t other_inner, other_stride, rotary;
    const int32_t* positions;
};

// Recurrent state (recurrent.inc). Of each sequence: the blocks its state is read from and written to, the first two of `columns`
// in its row of the table; tokens before the batch; its rows, `query` up to `last`.
struct Delta {
    int64_t type, seqs, keys, heads, key_dim, value_dim, columns, q_stride, k_stride, v_stride, rates;
    const int32_t *table, *context, *query, *last;
    const void *q, *k, *v;        // [tokens, keys | heads, key_dim | value_dim], tokens apart by the strides
    const float *decay, *share;   // [tokens, heads, rates]: one a head, or one for each of key_dim rows; [tokens, heads]
    float* held;                  // [blocks, heads, key_dim, value_dim]
    void* y;                      // [tokens, heads, value_dim]
};
struct Conv {
    int64_t type, seqs, channels, taps, columns, stride;
    const int32_t *table, *context, *query, *last;
    const void *x, *weight;  // [tokens, channels], `stride` apart; [channels, taps]
    void *held, *y;          // [blocks, taps - 1, channels]; [tokens, channels]
    const void* bias;        // [channels]; null: none
    int64_t act;             // 0 silu, 1 none
    int64_t parts, per_task;  // pieces of CONV_CHANNELS that a sequence is cut into, and how many of them a task takes
};
constexpr int64_t CONV_CHANNELS = 256;

// The gates of delta rules (gates.inc): decay and share of each head, or with `dim` a decay of each of its channels.
struct Decays {
    int64_t type, tokens, heads, dim, b_stride, step_stride, per_task;
    const void *b, *step;            // [tokens, heads]; [tokens, heads] or [tokens, heads, dim]
    const float *log_rate, *bias;    // [heads]; as a row of step
    float *decay, *share;            // as step and as b
    float floor;                     // below 0: of a decay's logarithm
};

// Of state-space models (scans.inc), sequences as above.
struct Ssd {
    int64_t type, seqs, groups, heads, width, size, columns, x_stride, b_stride, c_stride;
    const int32_t *table, *context, *query, *last;
    const void *x, *b, *c;              // [tokens, heads, width], [tokens, groups, size], tokens apart by the strides
    const float *far, *decay, *skip;    // [tokens, heads] twice; [heads]
    float* held;                        // [blocks, heads, size, width]
    void* y;                            // [tokens, heads, width]
};
struct Scan {
    int64_t type, seqs, channels, size, columns, x_stride, step_stride, b_stride, c_stride, gate_stride;
    const int32_t *table, *context, *query, *last;
    const void *x, *step, *b, *c, *gate;  // [tokens, channels], b and c [tokens, size], tokens apart by the strides
    const float *log_rate, *bias, *skip;  // [channels, size], [channels] twice
    float* held;                          // [blocks, size, channels]
    void* y;                              // [tokens, channels]
    int64_t parts;                        // pieces of SCAN_CHANNELS that a sequence is cut into
};
constexpr int64_t SCAN_CHANNELS = 128;

// Rows of logits [rows, width] to tokens (sampling.inc). What is null is not asked for.
struct Draw {
    const float *logits, *temperature, *top_p, *min_p;  // temperature null: 1. The others null: nothing is cut
    const int32_t *top_k, *seed, *position;
    int64_t rows, width, divides;  // divides: logits are not yet divided by the temperature
    float *kept, *most;            // kept: [rows, width], cut tokens -inf. most: of each row, NaN if one is
    int32_t* tokens;
    uint8_t* room;  // of each task
    int64_t room_bytes, tasks;
};
constexpr int64_t RANKED_BYTES = 26 << 10;
constexpr int64_t draw_bytes(int64_t width) { return (RANKED_BYTES + (3 * width + 64) * 4 + 63) / 64 * 64; }

struct Logprobs {
    const float* logits;  // [rows, width]
    const int32_t* tokens;
    int64_t width, k, normalises;
    int32_t *ids, *ranks;  // [rows, 1 + k], [rows]
    float* values;         // [rows, 1 + k]
};

struct Penalties {
    const float *logits, *repetition, *presence, *frequency;
    const int32_t *history, *slots, *lengths, *prompt_len;  // history: [slots, known]
    int64_t rows, width, known;
    float* out;
    int32_t* room;  // [tasks, width]
    int64_t tasks;
};

// Of mixtures of experts (experts.inc). Rows of logits [rows, experts] to the k best, ids and weights [rows, k].
struct Route {
    const float *logits, *bias;  // bias: of the choice alone, or null
    int64_t rows, experts, k, groups, top_groups, group_best;
    bool sigmoid, renormalise;
    float scale;
    int32_t* ids;
    float* weights;
    float* room;  // of each task `route_floats`
    int64_t per_task;
};
constexpr int64_t route_floats(int64_t experts) { return (experts + LANES - 1) / LANES * LANES * 4; }

// out [tokens, width] = the sum over a token's pairs of weight * y. Pairs lie sorted by expert: order [pairs] names the pair
// at each place, places [tokens, k] a token's places in ascending order. y holds those from `from` to `to` - 1.
struct Together {
    Type type;
    const void* y;
    const float* weights;  // [tokens, k]
    const int32_t *order, *places;
    int64_t tokens, k, width, from, to, per_task;
    bool begins, ends;  // are these a step's first pairs, and its last? Between, sums are kept
    float* sums;        // [tokens, width]
    void* out;
};

// Rows that have adapters (lora.inc): those of a slot lie together in `order`.
struct LoraPiece {
    int32_t slot, from, to;  // rows order[from] to order[to - 1], all of this slot
};
struct Lora {
    Type type;
    const void *x, *a, *b;  // [rows, inputs]; [slots, parts * rank, inputs]; [slots, rank, outputs]
    void* y;                // [rows, outputs]
    int64_t inputs, outputs, parts, rank;
    const int32_t *order, *ranks;  // ranks: [slots, rank_row], of which `parts` are looked at
    int64_t rank_row;
    const int64_t* bounds;         // [parts + 1]: outputs
    const LoraPiece* pieces;
    float* low;                                // A x of the rows from order[first] on, `low_row` numbers each
    int64_t first, low_row, piece_count, low_chunks, out_chunks, per_task;  // chunks: of a piece
};
// y [rows, width] -> y + y * vectors[s, 0] + vectors[s, 1], s the slot of the row; vectors [slots, 2, width].
struct Rescale {
    Type type;
    void* y;
    const int32_t* slots;
    const float* vectors;
    int64_t width, chunks, all_of, per_task;  // chunks: of a row
};
constexpr int64_t RESCALED = 1024;  // outputs of a chunk
constexpr int64_t LORA_LOW = 8, LORA_OUT = 256;  // rows of A, and outputs, of a chunk
constexpr int LORA_ROWS = 4;                     // rows multiplied at once
constexpr int64_t lora_chunks(int64_t outputs) { return (outputs + LORA_OUT - 1) / LORA_OUT; }

// Where vectors of sequences lie (sparse.inc): position p of sequence s in block table[s, p / size], numbers apart by the strides.
struct Source {
    const void* held;
    const int32_t* table;
    int64_t columns, size, block_stride, token_stride, group_stride;
};
// Attention of N tokens to listed keys: the last `window` of `near`, then those of `far` that are chosen, or whole blocks of keys of
// it. whole: the first `window` of `near`, for every token.
struct Reads {
    int64_t type, tokens, heads, groups, parts, dim, width, q_stride, window, listed, block, whole;  // parts: tasks of a token
    Source near, far, values;        // values: held null where a key's first `width` numbers are its value
    const int32_t *seq, *positions;  // [tokens]
    const int32_t* chosen;           // [tokens, groups, listed], -1: none
    const float* sinks;              // [heads] or null
    const void* q;                   // [tokens, heads, dim], tokens q_stride apart
    void* y;                         // [tokens, heads, width]
    float scale;
};
// The choice of keys by their scores: sum over heads of weights * relu(q . k), or without weights, of each head, the largest q . k of
// each block of keys.
struct Choice {
    int64_t type, rows, heads, dim, q_stride, keys, block, local, top;
    Source source;
    const void* q;        // [rows, heads, dim], rows q_stride apart
    const float* weights;  // [rows, heads] or null
    const int32_t *seq, *positions;
    int32_t* out;                           // [rows, top], or without weights [rows, heads, top]
    int64_t first, chunk, chunks, scored;   // of the rows at hand; keys of a task; numbers that are ranked
    float* scores;                          // [rows at hand, heads or 1, scored]
    void* room;                             // as many pairs, twice
};
constexpr int64_t MOST_CHOICE = 16384, MOST_INDEX = 256;  // numbers of a query of all heads, and of one
// Entries of windows of `rate` tokens; width: of an entry.
struct Pooling {
    int64_t type, windows, width, rate, overlaps;
    Source source;
    const int32_t *seq, *ends;  // [windows]; the position of the last token, -1: none
    const float* bias;          // [rate, width], twice as wide if windows overlap
    void* y;                    // [windows, width]
};
constexpr int64_t MOST_RATE = 256;
// Weights of hyper-connections; see the op of that name.
struct Hyper {
    int64_t tokens, streams, iters;
    const float *logits, *base, *scale;
    float *pre, *post, *comb;
    float eps;
};
constexpr int64_t MOST_STREAMS = 16;

struct Kernels {
    const char* name;
    Task linear, quantise_rows;
    Task widen_rows;  // null: bfloat16 inputs are multiplied as they are
    Task group_sums, write_kv, attend, norm, gate, turn, best, merge, draw, logprobs, penalties;
    void (*pack_panel)(const Weight& w, const uint8_t* rows, int64_t stride, int64_t steps, uint8_t* out);
    Task round_groups;  // inputs in one plane of bytes, by groups
    bool fours;         // does one instruction multiply fours of bytes? int8_groups needs it
    Task round_floats;  // inputs to 8-bit floats and back, in their type
    Task planes;        // in two. Null: int8 and int4 are never held in quads
    Task sixteens;      // bfloat16 inputs of integers, which are not in quads, as 16-bit numbers. Null: they are not rounded
    void (*round_row)(const Weight& w, const void* row, int64_t output, float* wide, uint8_t* codes);
    Task peak, delta, conv, route, together, gated_norm, write_latents, attend_latents, ssd, scan, group_norm, shrink, expand, rescale;
    Task layer_norm, sigmoid_gate, decays, read_chosen, choice_scores, choice_best, pool, hyper;
    bool (*pack_dense12)(const uint8_t* dense, int64_t steps, uint8_t* out);  // null: no product takes dense12
    void (*row_of_dense12)(const Weight& w, int64_t row, uint16_t* out);
    int64_t quad_words;          // of a row of inputs, for a step of int8_rows
    int64_t peak_operations[4];  // of a round, by kind; 0: none
};

// Products of numbers in registers: 0 float32, 1 bfloat16, 2 int8, 3 int4 by int8.
struct Peak {
    int32_t kind;
    int64_t rounds;
};

struct Quantise {
    Type type;
    const void* x;
    int64_t m, k, group, groups, row_words;
    uint8_t* codes;     // [m, row_words * 4]: code + 128. Planes: [m, planes, row_words * 4], with signs. Sixteens: int16. Floats: [m, k] of type
    float* row_scales;  // [m], of planes and sixteens [m, groups]
    float* sums;        // [m, groups]
    int32_t* plane_sums;  // [m, groups, planes]
    float scale;          // round_floats: of everything, or 0
    int64_t per_task;     // rows
    Kept* kept;           // int8_rows: [m], or null
};

extern const Kernels portable_kernels, avx2_kernels, avxvnni_kernels, avx512_kernels, avx512vnni_kernels, avx512bf16_kernels, amx_kernels;
extern const Kernels neon_kernels, neondot_kernels, neonbf16_kernels;

}  // namespace thalweg
