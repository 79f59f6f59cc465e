// Exchanges between the ranks of one model, which are processes of one machine, over memory that they share.
//
// Every rank has two slots. Exchange number n writes a rank's data into its slot n % 2, publishes n, and waits until all
// others have published it. A rank publishes n + 1 only after it has read what n brought. So whoever has seen n + 1 of all
// may write the slot of n again, and one wait per exchange suffices. Data larger than a slot goes in several exchanges.
//
// A rank holds a lock on a file for as long as it lives. Whoever waits for it tries that lock every now and then: the
// system frees it however a process ends, before its parent knows.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstring>
#include <thread>
#include <vector>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#include "context.h"
#include "relax.h"

namespace thalweg {

namespace {

constexpr auto SPIN = std::chrono::microseconds(50);
constexpr auto LOOK = std::chrono::milliseconds(100);  // from a look at a peer's lock to the next
constexpr int64_t TASK = 64 << 10, BLOCK = 512;        // bytes that a thread copies or sums at a time, numbers that stay in registers and L1

enum State : uint32_t { PRESENT = 0, LEFT = 1, ABORTED = 2 };
// Why an exchange failed, with the number of the rank that was waited for; cpu/shm.py has the words.
enum Reason : int { ENDED = 1, GONE = 2, STOPPED = 3, DIFFERS = 4 };
int failure(Reason why, int rank) { return why << 16 | rank; }

// What one rank tells the others.
struct alignas(128) Word {
    std::atomic<uint32_t> published;  // number of its last exchange
    std::atomic<uint32_t> sleepers;   // that wait for the next
    std::atomic<uint32_t> state;
    uint64_t what[2];  // the kind and size of the exchange whose data is in a slot
};
static_assert(std::atomic<uint32_t>::is_always_lock_free, "shared between processes");

}  // namespace

struct Ranks {
    int rank, size;
    int64_t slot;
    uint8_t* memory;
    size_t bytes;
    std::vector<int> locks;  // descriptors of the files that ranks hold locked
    uint32_t number = 0;     // of the last exchange
    int failed = 0;

    Word& word(int r) { return ((Word*)memory)[r]; }
    uint8_t* data(int r, uint32_t n) { return memory + up(size * sizeof(Word), 4096) + (r * 2 + n % 2) * slot; }
};

namespace {

size_t bytes_of(int size, int64_t slot) { return up(size * sizeof(Word), 4096) + size * 2 * slot; }

#if defined(__linux__)
void sleep_on(std::atomic<uint32_t>& at, uint32_t seen) {
    timespec most{0, std::chrono::nanoseconds(LOOK).count()};
    syscall(SYS_futex, &at, FUTEX_WAIT, seen, &most, nullptr, 0);
}
void wake(std::atomic<uint32_t>& at) { syscall(SYS_futex, &at, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }
#else
void sleep_on(std::atomic<uint32_t>&, uint32_t) { std::this_thread::sleep_for(SPIN); }
void wake(std::atomic<uint32_t>&) {}
#endif

bool reached(Word& w, uint32_t n) { return int32_t(w.published.load(std::memory_order_acquire) - n) >= 0; }

bool lives(int lock) {
    if (flock(lock, LOCK_SH | LOCK_NB)) return true;
    flock(lock, LOCK_UN);
    return false;
}

// Wait until rank r has published exchange n. 0, or why it will not.
int await(Ranks* g, int r, uint32_t n) {
    Word &peer = g->word(r), &mine = g->word(g->rank);
    const auto begun = std::chrono::steady_clock::now();
    auto looked = begun;
    for (;;) {
        for (int i = 0; i < 64; ++i) {
            if (reached(peer, n)) return 0;
            RELAX();
        }
        const auto now = std::chrono::steady_clock::now();
        if (now - begun < SPIN) {
            std::this_thread::yield();  // the peer may wait for this core
            continue;
        }
        int why = 0;
        if (mine.state.load() == ABORTED) why = STOPPED;
        else if (peer.state.load() != PRESENT) why = GONE;
        else if (now - looked >= LOOK) {
            looked = now;
            if (!lives(g->locks[r])) why = ENDED;
        }
        if (why) return reached(peer, n) ? 0 : failure(Reason(why), r);  // its last act may have been to publish
        peer.sleepers.fetch_add(1);
        const uint32_t seen = peer.published.load();
        if (int32_t(seen - n) < 0) sleep_on(peer.published, seen);
        peer.sleepers.fetch_sub(1);
    }
}

// Publish what this rank's slot holds, and wait until that of every rank is there.
int exchange(Ranks* g, uint64_t what) {
    Word& mine = g->word(g->rank);
    if (mine.state.load() == ABORTED) return failure(STOPPED, g->rank);
    const uint32_t n = g->number;
    mine.what[n % 2] = what;
    mine.published.store(n);
    if (mine.sleepers.load() > 0) wake(mine.published);
    for (int r = 0; r < g->size; ++r) {
        if (r == g->rank) continue;
        if (const int failed = await(g, r, n)) return failed;
        if (g->word(r).what[n % 2] != what) return failure(DIFFERS, r);
    }
    return 0;
}

float wide(float x) { return x; }
float wide(uint16_t x) {
    const uint32_t u = uint32_t(x) << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
void narrow(float x, float* to) { *to = x; }
void narrow(float x, uint16_t* to) {
    uint32_t u;
    memcpy(&u, &x, 4);
    *to = x != x ? 0x7fc0 : uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

// The sum of `count` numbers from `from` on of every rank's slot, in rank order.
template <class T>
void sum(Ranks* g, int64_t from, int64_t count, T* y) {
    float total[BLOCK];
    for (int64_t at = 0; at < count; at += BLOCK) {
        const int64_t n = count - at < BLOCK ? count - at : BLOCK;
        for (int r = 0; r < g->size; ++r) {
            const T* x = (const T*)g->data(r, g->number) + from + at;
            if (r == 0) for (int64_t i = 0; i < n; ++i) total[i] = wide(x[i]);
            else for (int64_t i = 0; i < n; ++i) total[i] += wide(x[i]);
        }
        for (int64_t i = 0; i < n; ++i) narrow(total[i], y + at + i);
    }
}

struct Job {
    Ranks* g;
    Type type;
    const uint8_t* x;
    uint8_t* y;
    int64_t bytes, row, done;  // row: bytes of a row that is gathered, `done` those of this rank before this exchange
};

// Tasks of one exchange: a piece of TASK bytes each.
void put(void* job, int64_t i) {
    Job& j = *(Job*)job;
    const int64_t from = i * TASK, n = j.bytes - from < TASK ? j.bytes - from : TASK;
    memcpy(j.g->data(j.g->rank, j.g->number) + from, j.x + j.done + from, n);
}
void add(void* job, int64_t i) {
    Job& j = *(Job*)job;
    const int64_t from = i * TASK, n = j.bytes - from < TASK ? j.bytes - from : TASK;
    if (j.type == Type::f32) sum(j.g, from / 4, n / 4, (float*)(j.y + j.done + from));
    else sum(j.g, from / 2, n / 2, (uint16_t*)(j.y + j.done + from));
}
// y [rows, ranks, row bytes]: the place of a byte of a rank follows from its row.
void lay(void* job, int64_t i) {
    Job& j = *(Job*)job;
    const int64_t end = (i + 1) * TASK < j.bytes ? (i + 1) * TASK : j.bytes;
    for (int r = 0; r < j.g->size; ++r) {
        const uint8_t* x = j.g->data(r, j.g->number);
        for (int64_t at = i * TASK; at < end;) {
            const int64_t whole = j.done + at, row = whole / j.row, in = whole % j.row;
            const int64_t n = j.row - in < end - at ? j.row - in : end - at;
            memcpy(j.y + (row * j.g->size + r) * j.row + in, x + at, n);
            at += n;
        }
    }
}

int all(Context* c, Ranks* g, Job& j, int64_t bytes, uint64_t kind, Task take_out) {
    if (g->failed) return g->failed;
    for (j.done = 0; j.done < bytes; j.done += j.bytes) {
        j.bytes = bytes - j.done < g->slot ? bytes - j.done : g->slot;
        const int64_t tasks = (j.bytes + TASK - 1) / TASK;
        ++g->number;
        run(c->pool, tasks, put, &j);
        if ((g->failed = exchange(g, kind << 56 | uint64_t(bytes - j.done)))) return g->failed;
        run(c->pool, tasks, take_out, &j);
    }
    return 0;
}

}  // namespace

}  // namespace thalweg

using namespace thalweg;

// Bytes of a file through which so many ranks exchange, with so many bytes a slot, a multiple of TASK.
EXPORT int64_t thalweg_ranks_bytes(int size, int64_t slot) { return int64_t(bytes_of(size, slot)); }

// Join as this rank. file: descriptor of that many bytes, zero at first. locks: descriptors of this process of the files that ranks
// hold locked. All stay the caller's, and open until the end. Null: the file cannot be mapped.
EXPORT Ranks* thalweg_ranks_open(int file, int rank, int size, int64_t slot, const int* locks) {
    const size_t bytes = bytes_of(size, slot);
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) return nullptr;
    return new Ranks{rank, size, slot, (uint8_t*)memory, bytes, {locks, locks + size}};
}

// Exchanges so far.
EXPORT int64_t thalweg_ranks_number(Ranks* g) { return g->number; }

// From any thread: this rank's exchange, if it waits in one, fails, and so do those of the others that wait for it.
EXPORT void thalweg_ranks_abort(Ranks* g) {
    g->word(g->rank).state.store(ABORTED);
    for (int r = 0; r < g->size; ++r) wake(g->word(r).published);
}

EXPORT void thalweg_ranks_close(Ranks* g) {
    Word& mine = g->word(g->rank);
    if (mine.state.load() == PRESENT) mine.state.store(LEFT);
    wake(mine.published);
    munmap(g->memory, g->bytes);
    delete g;
}

// y = the sum over ranks of x, n numbers. y may be x. 0, or a failure, which stays.
EXPORT int thalweg_all_reduce(Context* c, Ranks* g, int type, const void* x, int64_t n, void* y) {
    Job j{g, Type(type), (const uint8_t*)x, (uint8_t*)y, 0, 0, 0};
    return all(c, g, j, n * (Type(type) == Type::f32 ? 4 : 2), 1 + type, add);
}

// x [rows, bytes] -> y [rows, ranks, bytes]. y may not overlap x.
EXPORT int thalweg_all_gather(Context* c, Ranks* g, const void* x, int64_t rows, int64_t bytes, void* y) {
    Job j{g, Type::f32, (const uint8_t*)x, (uint8_t*)y, 0, bytes, 0};
    return all(c, g, j, rows * bytes, 3, lay);
}
