// Low-rank adapters of a step's rows: which rows share an adapter, y += B (A x) of one linear layer, and y's gains and biases.
#include <cstring>

#include "context.h"

using namespace thalweg;

namespace {

constexpr int64_t WORTH = int64_t(32) << 10;  // bytes read from which on a task is handed to another thread

// Chunks of about `bytes` each, all of them evenly among threads.
int64_t share(Context* c, int64_t chunks, int64_t bytes) {
    const int64_t least = WORTH / (bytes + 1) + 1, even = chunks / (int64_t(pool_threads(c->pool)) * 4);
    return even > least ? even : least;
}

template <class Job>
void run_chunks(Context* c, Job& j, int64_t chunks, int64_t bytes, Task task) {
    j.per_task = share(c, chunks, bytes);
    run(c->pool, (chunks + j.per_task - 1) / j.per_task, task, &j);
}

}  // namespace

void thalweg::add_pieces(Context* c, Lora& j) {
    const int64_t bytes = j.type == Type::bf16 ? 2 : 4;
    int64_t rows = 0;
    for (int64_t i = 0; i < j.piece_count; ++i) rows += j.pieces[i].to - j.pieces[i].from;
    if (!rows) return;
    j.low_row = j.parts * j.rank, j.low_chunks = j.parts * ((j.rank + LORA_LOW - 1) / LORA_LOW), j.out_chunks = 0;
    for (int64_t p = 0; p < j.parts; ++p) j.out_chunks += lora_chunks(j.bounds[p + 1] - j.bounds[p]);
    const int64_t each = (rows + j.piece_count - 1) / j.piece_count;  // rows of a piece, about
    run_chunks(c, j, j.piece_count * j.low_chunks, (bytes + each / 2) * LORA_LOW * j.inputs, c->kernels->shrink);
    run_chunks(c, j, j.piece_count * j.out_chunks, (bytes + each / 2) * LORA_OUT * j.rank, c->kernels->expand);
}

// The slot of each row, slot[seq[read[i]]], and rows in the order of their slots: those of slot s lie from starts[s] to
// starts[s + 1] - 1 of order, in their own order. starts [count + 1]. read: null for the rows 0 to n - 1. A slot that is not
// there counts as 0.
EXPORT void thalweg_lora_rows(Context*, const int32_t* slot, const int32_t* seq, const int32_t* read, int64_t n, int64_t count,
                              int32_t* slots, int32_t* order, int32_t* starts) {
    memset(starts, 0, (count + 1) * sizeof *starts);
    for (int64_t i = 0; i < n; ++i) {
        const int32_t s = slot[seq[read ? read[i] : i]];
        slots[i] = s >= 0 && s < count ? s : 0;
        if (slots[i] + 2 <= count) ++starts[slots[i] + 2];
    }
    for (int64_t s = 2; s <= count; ++s) starts[s] += starts[s - 1];
    for (int64_t i = 0; i < n; ++i) order[starts[slots[i] + 1]++] = int32_t(i);
}

// y [rows, outputs] += B (A x), x [rows, inputs], of rows whose slot is not 0. order, starts: as thalweg_lora_rows gives them.
// a [slots, parts * rank, inputs]; b [slots, rank, outputs]; ranks [slots, parts]: what is looked at of `rank`. bounds
// [parts + 1]: the first output of each part, and the end.
EXPORT void thalweg_lora_add(Context* c, int type, void* y, const void* x, int64_t inputs, int64_t outputs, const int32_t* order,
                             const int32_t* starts, int64_t slots, const void* a, const void* b, const int32_t* ranks,
                             const int64_t* bounds, int64_t parts, int64_t rank) {
    Lora j{};
    j.type = Type(type), j.y = y, j.x = x, j.inputs = inputs, j.outputs = outputs, j.order = order, j.a = a, j.b = b, j.ranks = ranks;
    j.bounds = bounds, j.parts = j.rank_row = parts, j.rank = rank;
    const int64_t end = starts[slots], low_row = parts * rank, fit = ROWS_BYTES / (low_row * 4), most = fit > ROWS_LEAST ? fit : ROWS_LEAST;
    auto adapted = [&](int64_t s) {
        int32_t any = 0;
        for (int64_t p = 0; p < parts; ++p) any |= ranks[s * parts + p];
        return any != 0;
    };
    int64_t slot = 1;
    for (int64_t from = starts[1]; from < end;) {  // so many rows at a time
        const int64_t to = end - from < most ? end : from + most, few = (to - from) / LORA_PIECE + (slots < to - from ? slots : to - from) + 1;
        LoraPiece* pieces = (LoraPiece*)c->room(up(few * sizeof(LoraPiece), 64) + (to - from) * low_row * 4);
        j.pieces = pieces, j.low = (float*)((uint8_t*)pieces + up(few * sizeof(LoraPiece), 64)), j.first = from, j.piece_count = 0;
        for (int64_t at = from; at < to;) {
            while (starts[slot + 1] <= at) ++slot;
            const int64_t limit = starts[slot + 1] < to ? starts[slot + 1] : to;
            if (!adapted(slot)) {
                at = limit;
                continue;
            }
            for (; at < limit; at += LORA_PIECE) {
                const int64_t last = at + LORA_PIECE < limit ? at + LORA_PIECE : limit;
                pieces[j.piece_count++] = {int32_t(slot), int32_t(at), int32_t(last)};
            }
            at = limit;
        }
        add_pieces(c, j);
        from = to;
    }
}

// y [rows, width] -> y + y * vectors[s, 0] + vectors[s, 1] of rows whose slot s is not 0; slots [rows], vectors [slots, 2, width].
EXPORT void thalweg_lora_rescale(Context* c, int type, void* y, const int32_t* slots, const float* vectors, int64_t rows, int64_t width) {
    Rescale j{};
    j.type = Type(type), j.y = y, j.slots = slots, j.vectors = vectors, j.width = width;
    j.chunks = (width + RESCALED - 1) / RESCALED, j.all_of = rows * j.chunks;
    run_chunks(c, j, j.all_of, (width < RESCALED ? width : RESCALED) * 12, c->kernels->rescale);
}
