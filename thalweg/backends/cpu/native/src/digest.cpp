// A number of 128 bits that tells contents of memory apart, at about the rate at which memory is read. It guards against mistakes, not
// against somebody who looks for two contents with one number.
#include <cstring>
#include <memory>

#include "context.h"

using namespace thalweg;

namespace {

constexpr int64_t CHUNK = 1 << 20;
constexpr uint64_t ODD[4] = {0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9, 0x94d049bb133111eb, 0xd6e8feb86659fd93};

struct Digest {
    uint64_t of[2];
};
struct Chunks {
    const uint8_t* at;
    int64_t bytes;
    Digest* out;
};

// Both halves of a product, folded.
inline uint64_t mixed(uint64_t a, uint64_t b) {
    const unsigned __int128 product = (unsigned __int128)a * b;
    return uint64_t(product) ^ uint64_t(product >> 64);
}

// 64 bytes into four numbers, each of 16 of them.
inline void take_in(uint64_t* state, const uint8_t* p) {
    for (int i = 0; i < 4; ++i) {
        uint64_t word[2];
        memcpy(word, p + 16 * i, 16);
        state[i] = mixed(state[i] ^ word[0], ODD[i] ^ word[1]) + word[1];
    }
}

Digest digest(const uint8_t* p, int64_t bytes) {
    uint64_t state[4] = {ODD[3], ODD[2], ODD[1], ODD[0]};
    int64_t i = 0;
    for (; i + 64 <= bytes; i += 64) take_in(state, p + i);
    uint8_t rest[64] = {};
    memcpy(rest, p + i, bytes - i);
    take_in(state, rest);
    const uint64_t size = uint64_t(bytes);
    return {{mixed(state[0] ^ size, state[1] ^ ODD[2]) ^ mixed(state[2] ^ ODD[0], state[3]), mixed(state[0] ^ ODD[1], state[2] ^ size) ^ mixed(state[1], state[3] ^ ODD[3])}};
}

void chunk(void* job, int64_t index) {
    const Chunks& j = *(const Chunks*)job;
    const int64_t from = index * CHUNK;
    j.out[index] = digest(j.at + from, j.bytes - from < CHUNK ? j.bytes - from : CHUNK);
}

}  // namespace

// out: 128 bits of so many bytes, which differ with the number of bytes too.
EXPORT void thalweg_digest(Context* c, const void* at, int64_t bytes, uint64_t* out) {
    const int64_t chunks = (bytes + CHUNK - 1) / CHUNK;
    std::unique_ptr<Digest[]> each(new Digest[chunks + 1]);
    Chunks job{(const uint8_t*)at, bytes, each.get()};
    run(c->pool, chunks, chunk, &job);
    each[chunks] = {{uint64_t(bytes), uint64_t(chunks)}};
    const Digest all = digest((const uint8_t*)each.get(), (chunks + 1) * int64_t(sizeof(Digest)));
    memcpy(out, all.of, sizeof all);
}
