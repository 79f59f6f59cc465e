// The kernels in a process of another architecture, run by an emulator: its main program (ci/emulated/bridge.py is the other end).
//
// It is told by pipe which function to call, with which arguments. Pointers are addresses of the caller's process. They are empty
// here: the first touch faults, and the handler asks the caller for the pages. After the call, the bytes that changed go back. So
// the driver knows no function's arguments, and any address that the kernels touch must be one that the caller has.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <atomic>

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#define X(name) extern "C" void name();
FUNCTIONS  // X(thalweg_...) of each
#undef X

// In place of the C library's, whose instruction that clears a line (DC ZVA) qemu 7.2 does not begin anew after a fault.
extern "C" __attribute__((optimize("no-tree-loop-distribute-patterns"))) void* memset(void* to, int value, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) ((uint8_t*)to)[i] = uint8_t(value);
    return to;
}

namespace {

constexpr uint64_t PAGE = 4096, WINDOW = 16, SLOTS = 1 << 20;  // WINDOW: pages asked for at once
constexpr uint64_t MOST = SLOTS / 2;                           // pages of a call

struct {
    const char* name;
    void (*function)();
} const functions[] = {
#define X(name) {#name, name},
    FUNCTIONS
#undef X
};

uint64_t *slots, *pages, count;  // pages that are here: [SLOTS] by their hash, [MOST] in order
uint8_t* originals;              // [MOST][PAGE]: as they came
std::atomic_flag busy = ATOMIC_FLAG_INIT;

[[noreturn]] void fail(const char* what, uint64_t address) {
    fprintf(stderr, "driver: %s %llx\n", what, (unsigned long long)address);
    _exit(3);
}

void* room(size_t bytes) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) fail("no room of bytes:", bytes);
    return at;
}

void get(void* to, size_t bytes) {
    for (ssize_t n; bytes; to = (uint8_t*)to + n, bytes -= size_t(n))
        if ((n = read(0, to, bytes)) <= 0) _exit(0);
}
void put(const void* from, size_t bytes) {
    for (ssize_t n; bytes; from = (const uint8_t*)from + n, bytes -= size_t(n))
        if ((n = write(1, from, bytes)) <= 0) _exit(0);
}

uint64_t& slot_of(uint64_t page) {
    uint64_t at = (page / PAGE * 0x9e3779b97f4a7c15ull) >> 44;
    while (slots[at] && slots[at] != page) at = (at + 1) % SLOTS;
    return slots[at];
}

// Asks for the pages around an address: 'P' and where they begin. The answer: of each whether it is there, then those that are.
void fetch(uint64_t address) {
    const uint64_t page = address / PAGE * PAGE, first = page / (PAGE * WINDOW) * (PAGE * WINDOW);
    if (slot_of(page) == page) return;  // another thread was faster
    uint8_t there[WINDOW];
    const uint64_t ask[] = {'P', first};
    put(ask, sizeof ask);
    get(there, WINDOW);
    if (!there[(page - first) / PAGE]) fail("no memory of the caller's at", address);
    for (uint64_t i = 0; i < WINDOW; ++i) {
        if (!there[i]) continue;
        const uint64_t at = first + i * PAGE;
        if (slot_of(at) == at) fail("asked twice for", at);
        if (count == MOST) fail("too many pages with", at);
        if (!msync((void*)at, PAGE, MS_ASYNC) || errno != ENOMEM) fail("taken in both processes:", at);
        get(originals + count * PAGE, PAGE);
        // Moved there when it is complete: another thread may touch it at once.
        void* ready = room(PAGE);
        memcpy(ready, originals + count * PAGE, PAGE);
        if (mremap(ready, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, (void*)at) != (void*)at) fail("cannot map", at);
        slot_of(at) = pages[count++] = at;
    }
}

void faulted(int, siginfo_t* info, void*) {
    while (busy.test_and_set(std::memory_order_acquire)) {
    }
    fetch((uint64_t)info->si_addr);
    busy.clear(std::memory_order_release);
}

// 'W', where, how many bytes, and they: of every run of bytes that changed. Then nothing of the caller's is here any more.
void give_back() {
    for (uint64_t p = 0; p < count; ++p) {
        const uint8_t *now = (const uint8_t*)pages[p], *before = originals + p * PAGE;
        for (uint64_t i = 0, end; i < PAGE && memcmp(now + i, before + i, PAGE - i); i = end) {
            while (now[i] == before[i]) ++i;
            for (end = i; end < PAGE && now[end] != before[end];) ++end;
            const uint64_t run[] = {'W', pages[p] + i, end - i};
            put(run, sizeof run);
            put(now + i, end - i);
        }
    }
    for (uint64_t p = 0; p < count; ++p) munmap((void*)pages[p], PAGE);
    memset(slots, 0, count ? SLOTS * sizeof *slots : 0);
    count = 0;
}

// Whole numbers and pointers fill one file of registers and then the stack, in order; float32 another.
typedef int64_t (*Any)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, float, float, float, float, float, float, float,
                       float, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);

}  // namespace

// A call: the number of the function among FUNCTIONS, and is its result text? Twenty whole numbers, eight float32. The
// answer, after pages and changes: 'R' and the result, and for text its bytes' count and they.
int main() {
#if !defined(__aarch64__)
#error "arguments are passed as on aarch64"
#endif
    slots = (uint64_t*)room(SLOTS * sizeof *slots), pages = (uint64_t*)room(MOST * sizeof *pages), originals = (uint8_t*)room(MOST * PAGE);
    struct sigaction on {};
    on.sa_sigaction = faulted, on.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &on, nullptr);
    for (;;) {
        uint64_t which[2];
        int64_t i[20];
        float f[8];
        get(which, sizeof which), get(i, sizeof i), get(f, sizeof f);
        const Any call = (Any)functions[which[0]].function;
        const int64_t result = call(i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7], f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7], i[8], i[9],
                                    i[10], i[11], i[12], i[13], i[14], i[15], i[16], i[17], i[18], i[19]);
        give_back();
        const int64_t answer[] = {'R', result};
        put(answer, sizeof answer);
        if (!which[1]) continue;
        const uint64_t bytes = strlen((const char*)result);
        put(&bytes, sizeof bytes), put((const void*)result, bytes);
    }
}
