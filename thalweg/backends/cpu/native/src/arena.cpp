// Memory for weights and caches, on huge pages, and an arena of it, made ready ahead of time.
//
// The system clears a page when it is first touched. For the weights of a model that takes as long as packing them. So
// a thread can do it beforehand, while the process is busy importing. `take` is then served from the arena in order, as
// long as it lasts.
#include <sys/mman.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <pthread/qos.h>
#else
#include <sys/resource.h>
#endif

#include <condition_variable>
#include <mutex>
#include <thread>

#include "context.h"

using namespace thalweg;

namespace {

constexpr size_t BIG = size_t(2) << 20;  // of a huge page
// Of an ordinary one: 4 KiB on x86, up to 64 KiB elsewhere. What is given back begins and ends with one.
const size_t PAGE = size_t(sysconf(_SC_PAGESIZE));

// The calling thread goes after others from now on.
void step_back() {
#if defined(__APPLE__)
    pthread_set_qos_class_self_np(QOS_CLASS_UTILITY, 0);
#else
    setpriority(PRIO_PROCESS, 0, 10);  // of this thread alone, on Linux
#endif
}

uint8_t* map(size_t bytes) {
    size_t extra = bytes >= BIG ? BIG : 0;
    void* got = mmap(nullptr, bytes + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED) return nullptr;
    if (!extra) return (uint8_t*)got;
    auto start = (uintptr_t)got, aligned = up(start, BIG);
    if (aligned > start) munmap(got, aligned - start);
    if (extra - (aligned - start)) munmap((void*)(aligned + bytes), extra - (aligned - start));
#ifdef MADV_HUGEPAGE
    madvise((void*)aligned, bytes, MADV_HUGEPAGE);
#endif
    return (uint8_t*)aligned;
}

// Of a process one, and of its memory what is taken belongs to whoever took it: `give` is the same for all memory.
struct Arena {
    std::mutex mutex;
    std::condition_variable changed;
    uint8_t* start = nullptr;
    size_t bytes = 0, ready = 0, taken = 0;  // both from the start. ready: touched, whole huge pages of it
    bool touching = false;                   // a thread is, beyond `ready`

    // Stops where takers have overtaken it: they touch what they take, on as many threads as they have.
    void touch() {
        step_back();  // imports go first
        std::unique_lock<std::mutex> lock(mutex);
        while (taken <= ready && ready < bytes) {
            uint8_t* at = start + ready;
            lock.unlock();
            for (size_t i = 0; i < BIG; i += PAGE) ((volatile uint8_t*)at)[i] = 0;
            lock.lock();
            ready += BIG;
            changed.notify_all();
        }
        touching = false;
        changed.notify_all();
    }
};

// Never destroyed: its thread may still run when the process ends.
Arena& arena() {
    static Arena* one = new Arena;
    return *one;
}

}  // namespace

namespace thalweg {

void* take(size_t bytes) {
    bytes = up(bytes, PAGE);
    Arena& a = arena();
    std::unique_lock<std::mutex> lock(a.mutex);
    if (bytes > a.bytes - a.taken) {
        lock.unlock();
        return map(bytes);
    }
    uint8_t* got = a.start + a.taken;
    a.taken += bytes;
    a.changed.wait(lock, [&] { return !a.touching || a.taken <= a.ready; });  // for the page being touched, at most
    return got;
}

void give(void* p, size_t bytes) { munmap(p, up(bytes, PAGE)); }

}  // namespace thalweg

EXPORT void* thalweg_take(size_t bytes) { return take(bytes); }
EXPORT void thalweg_give(void* p, size_t bytes) { give(p, bytes); }

// Each page of these bytes is there from now on. They stay as they are.
EXPORT void thalweg_populate(void* p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += PAGE) __atomic_fetch_or((volatile uint8_t*)p + i, uint8_t(0), __ATOMIC_RELAXED);
}

// About so many bytes will be taken: begin to make them ready. Nothing if there is an arena that has not been settled.
EXPORT void thalweg_expect(size_t bytes) {
    Arena& a = arena();
    std::lock_guard<std::mutex> lock(a.mutex);
    if (a.bytes || a.touching || !bytes) return;
    bytes = up(bytes, BIG);
    a.start = map(bytes);
    if (!a.start) return;
    a.bytes = bytes, a.ready = a.taken = 0, a.touching = true;
    std::thread(&Arena::touch, &a).detach();
}

// Bytes that the process holds and nobody has taken.
EXPORT int64_t thalweg_waiting() {
    Arena& a = arena();
    std::lock_guard<std::mutex> lock(a.mutex);
    return a.ready > a.taken ? int64_t(a.ready - a.taken) : 0;
}

// Everything expected has been taken: what is left goes back to the system, and the thread has ended.
EXPORT void thalweg_settle() {
    Arena& a = arena();
    std::unique_lock<std::mutex> lock(a.mutex);
    uint8_t* rest = a.start + a.taken;
    const size_t left = a.bytes - a.taken;
    a.bytes = a.taken = 0;  // ends the thread's loop
    a.changed.wait(lock, [&] { return !a.touching; });
    a.ready = 0;
    if (left) munmap(rest, left);
}
