// The interface of sparse.inc and gates.inc: attention to listed keys, the choice of keys, and small ops of their layers.
#include <cstring>

#include "context.h"

using namespace thalweg;

namespace {

constexpr int64_t MOST_HEADS = 48, LEAST_HEADS = 6;  // of a task
constexpr int64_t CHOICE_BYTES = int64_t(32) << 20;  // of scores at a time, about
constexpr int64_t CHOICE_KEYS = 512;                 // of a task, about

// Even parts of the heads of a token: as few as keep all threads at work.
int64_t parts_of(int64_t heads, int64_t tokens, int threads) {
    int64_t most = heads;
    for (int64_t n = 1; n <= heads; ++n) {
        if (heads % n || heads / n > MOST_HEADS) continue;
        if (n * tokens >= 2 * threads || heads / n < 2 * LEAST_HEADS) return n;
        most = n;
    }
    return most;
}

}  // namespace

// See Reads.
EXPORT void thalweg_read_chosen(Context* c, Reads* j) {
    j->parts = j->groups * parts_of(j->heads / j->groups, j->tokens * j->groups, pool_threads(c->pool));
    run(c->pool, j->tokens * j->parts, c->kernels->read_chosen, j);
}

// See Choice. Some rows at a time, so that scores need little memory.
EXPORT void thalweg_choose(Context* c, const Choice* given) {
    Choice j = *given;
    const int64_t lists = j.weights ? 1 : j.heads;
    j.scored = (j.keys + j.block - 1) / j.block;
    j.chunk = (CHOICE_KEYS + j.block - 1) / j.block * j.block, j.chunks = (j.keys + j.chunk - 1) / j.chunk;
    const int64_t row_bytes = lists * j.scored * 20;  // a score, and a pair twice
    int64_t most = CHOICE_BYTES / (row_bytes + 1);
    if (most < 1) most = 1;
    if (most > j.rows) most = j.rows;
    const size_t scores = up(most * lists * j.scored * 4, 64);
    uint8_t* room = (uint8_t*)c->room(scores + most * lists * j.scored * 16);
    j.scores = (float*)room, j.room = room + scores;
    for (const int64_t all = j.rows; j.first < all; j.first += most) {
        j.rows = all - j.first < most ? all - j.first : most;
        run(c->pool, j.rows * j.chunks, c->kernels->choice_scores, &j);
        run(c->pool, j.rows * lists, c->kernels->choice_best, &j);
    }
}

// See Pooling.
EXPORT void thalweg_pool(Context* c, Pooling* j) { run(c->pool, j->windows, c->kernels->pool, j); }

// See Hyper.
EXPORT void thalweg_hyper(Context* c, Hyper* j) { run(c->pool, j->tokens, c->kernels->hyper, j); }

// See Decays. A task is worth handing to another thread from some size on, as with rows.
EXPORT void thalweg_decays(Context* c, Decays* j) {
    const int64_t share = (j->tokens + pool_threads(c->pool) - 1) / pool_threads(c->pool);
    const int64_t least = (int64_t(32) << 10) / (j->heads * (j->dim ? j->dim : 1) * 32 + 1) + 1;
    j->per_task = share > least ? share : least;
    if (j->tokens > 0) run(c->pool, (j->tokens + j->per_task - 1) / j->per_task, c->kernels->decays, j);
}
