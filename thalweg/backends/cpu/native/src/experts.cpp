// Mixtures of experts: pairs (token, expert) sorted by expert, and each expert's rows through that expert's matrices, with the
// products of linear layers. Experts without a row are not read. All products of some rows are one job, so that threads share
// them by (expert, panel).
#include <cstring>

#include "context.h"

using namespace thalweg;

namespace {

constexpr int64_t COPIED = 16;  // rows of a task

struct Spread {
    const uint8_t* x;
    const int32_t* order;  // from the first row on
    int64_t rows, k, row_bytes;
    uint8_t* out;
};

void spread(void* job, int64_t index) {
    const Spread& j = *(const Spread*)job;
    for (int64_t r = index * COPIED; r < (index + 1) * COPIED && r < j.rows; ++r)
        memcpy(j.out + r * j.row_bytes, j.x + j.order[r] / j.k * j.row_bytes, j.row_bytes);
}

struct Share {  // of the rows that are here, those of one expert
    int64_t expert, from, to;
};

struct Products {
    const Kernels* kernels;
    Weight* weights;
    Linear* jobs;     // of each share
    int64_t* starts;  // their first tasks, and the end of all
    int64_t count;
};

void product(void* job, int64_t index) {
    const Products& p = *(const Products*)job;
    int64_t low = 0, high = p.count;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        (p.starts[middle] <= index ? low : high) = middle;
    }
    p.kernels->linear(p.jobs + low, index - p.starts[low]);
}

// y [rows, n] = x through the matrix, of n outputs, of each row's expert. side: 0, or of how many rows each share is, which
// then lie side by side: y [side, experts, n].
void multiply(Context* c, const Weight* w, int64_t experts, int64_t n, Type type, const void* x, int64_t rows, uint8_t* room,
              const Share* shares, Products& p, void* y, int64_t side = 0) {
    Linear ready{};
    make_ready(c, w, type, x, rows, room, ready);
    ready.y = y;
    const int64_t panels = w->panels / experts, threads = pool_threads(c->pool), most = panels * p.count / (threads * 4);
    int64_t tasks = 0;
    for (int64_t i = 0; i < p.count; ++i) {
        const Share& s = shares[i];
        p.weights[i] = outputs_of(*w, s.expert * panels, n);
        Linear& j = p.jobs[i] = ready;
        j.w = p.weights + i, j.first = s.from, j.m = s.to;
        if (side) j.y_row = experts * n, j.y = (uint8_t*)y + (s.expert * n - s.from * j.y_row) * (type == Type::bf16 ? 2 : 4);
        const int64_t m = s.to - s.from, cheap = (int64_t(128) << 10) / (int64_t(w->panel_bytes) + m * w->k);
        const int64_t even = most < panels ? most : panels, per = even < cheap ? even : cheap;
        j.panels_per_task = per > 1 ? per : 1;
        j.panels_ahead = (threads - 1) * j.panels_per_task + 1;
        j.rows_per_chunk = m >= 256 && panels * p.count < threads * 4 ? 128 : m;
        j.row_chunks = (m + j.rows_per_chunk - 1) / j.rows_per_chunk;
        p.starts[i] = tasks;
        tasks += (panels + j.panels_per_task - 1) / j.panels_per_task * j.row_chunks;
    }
    p.starts[p.count] = tasks;
    run(c->pool, tasks, product, &p);
}

// Where pairs lie when they are sorted by expert. starts [experts + 1]: the first of each. order: the pair at each place.
// places [tokens, k]: of each token's pairs in ascending order; one that names no expert has none, and comes last. Pairs of an
// expert lie in the order of `turn` [tokens], or that of tokens where it is null.
void sort(const int32_t* ids, int64_t tokens, int64_t k, int64_t experts, const int32_t* turn, int64_t* starts, int32_t* order,
          int32_t* places) {
    memset(starts, 0, (experts + 2) * sizeof *starts);
    auto there = [&](int64_t pair) { return ids[pair] >= 0 && ids[pair] < experts; };
    for (int64_t i = 0; i < tokens * k; ++i)
        if (there(i)) ++starts[ids[i] + 2];
    for (int64_t e = 2; e <= experts + 1; ++e) starts[e] += starts[e - 1];
    for (int64_t n = 0; n < tokens; ++n)
        for (int64_t t = turn ? turn[n] : n, i = 0; i < k; ++i) {
            const int64_t pair = t * k + i;
            int32_t place = INT32_MAX;
            if (there(pair)) order[place = int32_t(starts[ids[pair] + 1]++)] = int32_t(pair);
            int64_t at = i;
            for (; at > 0 && places[t * k + at - 1] > place; --at) places[t * k + at] = places[t * k + at - 1];
            places[t * k + at] = place;
        }
}

// Memory in pieces of whole lines: first how much, then where.
struct Pieces {
    uint8_t* room = nullptr;
    size_t taken = 0;
    template <class T>
    T* some(int64_t count) {
        T* at = (T*)(room + taken);
        taken += up(count * sizeof(T), 64);
        return at;
    }
};

// Adapters of experts. a, b, ranks: [slots, experts, ...] as `Lora` has them, of gate and up, and of down. slots [tokens]: 0 is none.
struct Adapters {
    const int32_t* slots;
    const void *gate_up_a, *gate_up_b, *down_a, *down_b;
    const int32_t* ranks;  // [slots, experts, 3]: of gate, up and down
    int64_t rank;
};

// Tokens in the order of their slots. starts: of `slots` + 1 numbers.
void sort_tokens(const int32_t* slots, int64_t tokens, int64_t count, int32_t* starts, int32_t* turn) {
    memset(starts, 0, (count + 1) * sizeof *starts);
    for (int64_t t = 0; t < tokens; ++t) ++starts[slots[t] + 1];
    for (int64_t s = 1; s <= count; ++s) starts[s] += starts[s - 1];
    for (int64_t t = 0; t < tokens; ++t) turn[starts[slots[t]]++] = int32_t(t);
}

struct Work {
    int64_t* starts;
    int32_t *order, *places, *of, *turn, *slot_starts, *every;  // every: 0, 1, 2 and so on
    LoraPiece* pieces;
    float* low;
    Share* shares;
    Products products;
    uint8_t *x, *ready, *both, *middle, *made;
    float* sums;
};

// Rows `first` to `first` + rows - 1 of order, in pieces of one expert and one slot, where an adapter changes one of the `parts`
// matrices from the one named `part` on.
int64_t cut_pieces(const Adapters& a, const Work& w, int64_t first, int64_t k, int64_t experts, int64_t part, int64_t parts) {
    int64_t count = 0;
    for (int64_t i = 0; i < w.products.count; ++i) {
        const Share& s = w.shares[i];
        auto slot_at = [&](int64_t row) { return a.slots[w.order[first + row] / k]; };
        for (int64_t from = s.from, to; from < s.to; from = to) {
            const int64_t slot = slot_at(from), pair = slot * experts + s.expert;
            for (to = from + 1; to < s.to && slot_at(to) == slot;) ++to;
            int32_t any = 0;
            for (int64_t p = part; slot && p < part + parts; ++p) any |= a.ranks[pair * 3 + p];
            for (int64_t at = from; any && at < to; at += LORA_PIECE)
                w.pieces[count++] = {int32_t(pair), int32_t(at), int32_t(at + LORA_PIECE < to ? at + LORA_PIECE : to)};
        }
    }
    return count;
}

// y [rows, outputs] += B (A x) of the adapters of these rows. down: of that matrix, else of gate and up.
void adapt(Context* c, const Adapters& a, const Work& w, int64_t first, int64_t k, int64_t experts, bool down, Type type,
           const void* x, int64_t inputs, void* y, int64_t outputs) {
    const int64_t parts = down ? 1 : 2, bounds[3] = {0, outputs / parts, outputs};
    Lora j{};
    j.type = type, j.x = x, j.a = down ? a.down_a : a.gate_up_a, j.b = down ? a.down_b : a.gate_up_b, j.y = y;
    j.inputs = inputs, j.outputs = outputs, j.parts = parts, j.rank = a.rank, j.order = w.every, j.ranks = a.ranks + (down ? 2 : 0);
    j.rank_row = 3, j.bounds = bounds, j.pieces = w.pieces, j.low = w.low;
    j.piece_count = cut_pieces(a, w, first, k, experts, down ? 2 : 0, parts);
    add_pieces(c, j);
}

int64_t per_task(Context* c, int64_t rows, int64_t bytes) {
    const int64_t share = (rows + pool_threads(c->pool) - 1) / pool_threads(c->pool), least = (int64_t(32) << 10) / (bytes + 1) + 1;
    return share > least ? share : least;
}

struct Gate {  // as Rows has it
    int act;
    float most, most_up;
};

// See thalweg_experts. adapters: or null.
void mix(Context* c, const Weight* gate_up, const Weight* down, int64_t experts, int64_t inner, Gate gate, int type, const void* x,
         int64_t tokens, const int32_t* ids, const float* weights, int64_t k, void* out, const void* bias, const Adapters* adapters) {
    const int64_t hidden = gate_up->k, pairs = tokens * k, bytes = Type(type) == Type::bf16 ? 2 : 4;
    const int64_t between = gate.act & ALONE ? inner : 2 * inner;
    const int64_t fit = ROWS_BYTES / (4 * (hidden > between ? hidden : between)) / 128 * 128;
    const int64_t most = fit > ROWS_LEAST ? fit : ROWS_LEAST, rows = pairs < most ? pairs : most, few = experts < rows ? experts : rows;
    Linear unused{};
    const size_t first = make_ready(c, gate_up, Type(type), x, rows, nullptr, unused);
    const size_t second = make_ready(c, down, Type(type), x, rows, nullptr, unused);
    int64_t slots = 0;
    for (int64_t t = 0; t < tokens && adapters; ++t) slots = adapters->slots[t] >= slots ? adapters->slots[t] + 1 : slots;
    auto divide = [&](Pieces& p) {
        Work w;
        w.starts = p.some<int64_t>(experts + 2), w.order = p.some<int32_t>(pairs), w.places = p.some<int32_t>(pairs);
        w.of = p.some<int32_t>(bias ? rows : 0);
        w.shares = p.some<Share>(few);
        w.products = {c->kernels, p.some<Weight>(few), p.some<Linear>(few), p.some<int64_t>(few + 1), 0};
        w.x = p.some<uint8_t>(rows * hidden * bytes), w.ready = p.some<uint8_t>(first > second ? first : second);
        w.both = p.some<uint8_t>(rows * between * bytes), w.middle = p.some<uint8_t>(rows * inner * bytes);
        w.made = p.some<uint8_t>(rows * hidden * bytes);
        w.sums = p.some<float>(pairs > rows ? tokens * hidden : 0);
        const int64_t adapted = adapters ? rows : 0;
        w.turn = p.some<int32_t>(adapters ? tokens : 0), w.slot_starts = p.some<int32_t>(adapters ? slots + 1 : 0);
        w.every = p.some<int32_t>(adapted), w.pieces = p.some<LoraPiece>(adapted);
        w.low = p.some<float>(adapters ? rows * 2 * adapters->rank : 0);
        return w;
    };
    Pieces room;
    divide(room);
    room = {(uint8_t*)c->room(room.taken), 0};
    Work w = divide(room);
    if (adapters) sort_tokens(adapters->slots, tokens, slots, w.slot_starts, w.turn);
    for (int64_t i = 0; i < rows && adapters; ++i) w.every[i] = int32_t(i);
    sort(ids, tokens, k, experts, adapters ? w.turn : nullptr, w.starts, w.order, w.places);
    const int64_t end = w.starts[experts];
    int64_t from = 0, expert = 0;
    do {  // so many rows at a time, whole experts where that leaves at least half of them
        int64_t to = end - from < most ? end : from + most, last = expert;
        while (last < experts && w.starts[last + 1] <= to) ++last;
        if (to < end && w.starts[last] >= from + most / 2) to = w.starts[last];
        Products& p = w.products;
        for (p.count = 0; expert < experts && w.starts[expert] < to; ++expert) {
            const int64_t a = w.starts[expert] > from ? w.starts[expert] : from, b = w.starts[expert + 1];
            if (a < b) w.shares[p.count++] = {expert, a - from, (b < to ? b : to) - from};
            if (b > to) break;
        }
        Spread s{(const uint8_t*)x, w.order + from, to - from, k, hidden * bytes, w.x};
        run(c->pool, (s.rows + COPIED - 1) / COPIED, spread, &s);
        multiply(c, gate_up, experts, between, Type(type), w.x, s.rows, w.ready, w.shares, p, w.both);
        if (adapters) adapt(c, *adapters, w, from, k, experts, false, Type(type), w.x, hidden, w.both, between);
        Rows g{};
        g.type = Type(type), g.x = w.both, g.y = w.middle, g.rows = s.rows, g.width = inner, g.inner = 1;
        g.act = gate.act, g.most = gate.most, g.most_up = gate.most_up;
        g.weight = bias, g.positions = w.of, g.per_task = per_task(c, s.rows, inner * 16);
        for (int64_t i = 0; i < p.count && bias; ++i)
            for (int64_t r = w.shares[i].from; r < w.shares[i].to; ++r) w.of[r] = int32_t(w.shares[i].expert);
        run(c->pool, (s.rows + g.per_task - 1) / g.per_task, c->kernels->gate, &g);
        multiply(c, down, experts, hidden, Type(type), w.middle, s.rows, w.ready, w.shares, p, w.made);
        if (adapters) adapt(c, *adapters, w, from, k, experts, true, Type(type), w.middle, inner, w.made, hidden);
        Together t{Type(type), w.made, weights, w.order, w.places, tokens, k, hidden, from, to, 0, from == 0, to == end, w.sums, out};
        t.per_task = per_task(c, tokens, k * hidden * bytes);
        run(c->pool, (tokens + t.per_task - 1) / t.per_task, c->kernels->together, &t);
        from = to;
    } while (from < end);
}

}  // namespace

// out [tokens, H] = the sum over each token's k experts of weight * down(act(gate(x)) * up(x)); x [tokens, H], ids and weights
// [tokens, k]. gate_up: a packed weight of `experts` matrices with 2 inner outputs, and down with H, each matrix in whole
// panels. act, most, most_up: as thalweg_gate's; with ALONE experts are down(act(up(x))), and gate_up's matrices have inner outputs. type: of x,
// out and bias, and of dense weights. bias [experts, 2 inner]: of gate_up, or null.
EXPORT void thalweg_experts(Context* c, const Weight* gate_up, const Weight* down, int64_t experts, int64_t inner, int act, float most,
                            float most_up, int type, const void* x, int64_t tokens, const int32_t* ids, const float* weights, int64_t k,
                            void* out, const void* bias) {
    mix(c, gate_up, down, experts, inner, {act, most, most_up}, type, x, tokens, ids, weights, k, out, bias, nullptr);
}

// The same with y + B (A x) of each product, by the adapter of the token's slot. gate_up_a [slots, experts, 2 rank, H], gate_up_b
// [slots, experts, rank, 2 inner], down_a [slots, experts, rank, inner], down_b [slots, experts, rank, H]: of x's type. ranks
// [slots, experts, 3].
EXPORT void thalweg_lora_experts(Context* c, const Weight* gate_up, const Weight* down, int64_t experts, int64_t inner, int act,
                                 float most, float most_up, int type, const void* x, int64_t tokens, const int32_t* ids, const float* weights, int64_t k,
                                 void* out, const int32_t* slots, const void* gate_up_a, const void* gate_up_b, const void* down_a,
                                 const void* down_b, const int32_t* ranks, int64_t rank) {
    const Adapters adapters{slots, gate_up_a, gate_up_b, down_a, down_b, ranks, rank};
    mix(c, gate_up, down, experts, inner, {act, most, most_up}, type, x, tokens, ids, weights, k, out, nullptr, &adapters);
}

// The k best experts of each row of logits [rows, experts], best first, and their weights, ids and weights [rows, k]; bias
// [experts] or null. Everything else as the op `route` has it.
EXPORT void thalweg_route(Context* c, const float* logits, const float* bias, int64_t rows, int64_t experts, int64_t k, int sigmoid,
                          int renormalise, float scale, int64_t groups, int64_t top_groups, int64_t group_best, int32_t* ids,
                          float* weights) {
    Route j{logits, bias, rows, experts, k, groups, top_groups, group_best, bool(sigmoid), bool(renormalise), scale, ids, weights, nullptr, 0};
    j.per_task = per_task(c, rows, experts * 64);
    const int64_t tasks = (rows + j.per_task - 1) / j.per_task;
    j.room = (float*)c->room(tasks * route_floats(experts) * 4);
    run(c->pool, tasks, c->kernels->route, &j);
}

namespace {

struct Turned {  // x [tokens, heads, k], apart by strides in bytes, as out [heads, tokens, k]
    const uint8_t* x;
    int64_t tokens, heads, row_bytes, token_bytes, head_bytes;
    uint8_t* out;
};

void by_heads(void* job, int64_t head) {
    const Turned& j = *(const Turned*)job;
    for (int64_t t = 0; t < j.tokens; ++t)
        memcpy(j.out + (head * j.tokens + t) * j.row_bytes, j.x + t * j.token_bytes + head * j.head_bytes, j.row_bytes);
}

}  // namespace

// y [tokens, heads, n] = each head of x [tokens, heads, k] through that head's matrix. w: a packed weight of `heads` matrices
// with n outputs, each in whole panels. x lies x_token and x_head numbers apart, y is contiguous. type: of x, y and w.
EXPORT void thalweg_heads(Context* c, const Weight* w, int64_t heads, int64_t n, int type, const void* x, int64_t tokens,
                          int64_t x_token, int64_t x_head, void* y) {
    const int64_t bytes = Type(type) == Type::bf16 ? 2 : 4, fit = ROWS_BYTES / (heads * w->k * 4), least = fit > 32 ? fit : 32;
    const int64_t most = tokens < least ? tokens : least;
    Linear ready{};
    const size_t made = make_ready(c, w, Type(type), x, heads * most, nullptr, ready);
    for (int64_t from = 0; from < tokens; from += most) {
        const int64_t count = tokens - from < most ? tokens - from : most;
        auto divide = [&](Pieces& p, Share*& shares, uint8_t*& copied, uint8_t*& room) {
            shares = p.some<Share>(heads);
            Products products{c->kernels, p.some<Weight>(heads), p.some<Linear>(heads), p.some<int64_t>(heads + 1), heads};
            copied = p.some<uint8_t>(heads * most * w->k * bytes), room = p.some<uint8_t>(made);
            return products;
        };
        Pieces room;
        Share* shares;
        uint8_t *copied, *widened;
        divide(room, shares, copied, widened);
        room = {(uint8_t*)c->room(room.taken), 0};
        Products p = divide(room, shares, copied, widened);
        const bool straight = count == 1 && x_head == w->k;
        if (straight) copied = (uint8_t*)x + from * x_token * bytes;
        Turned turn{(const uint8_t*)x + from * x_token * bytes, count, heads, w->k * bytes, x_token * bytes, x_head * bytes, copied};
        run(c->pool, straight ? 0 : heads, by_heads, &turn);
        for (int64_t h = 0; h < heads; ++h) shares[h] = {h, h * count, (h + 1) * count};
        multiply(c, w, heads, n, Type(type), copied, heads * count, widened, shares, p, (uint8_t*)y + from * heads * n * bytes, count);
    }
}
