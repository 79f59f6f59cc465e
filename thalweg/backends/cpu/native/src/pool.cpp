// One pool of threads. The caller takes part, so with n threads there are n - 1 workers. Tasks are taken one by one, so a
// worker that the system gives no core costs nothing: the others take its share. Workers spin briefly, then sleep.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "core.h"
#include "relax.h"

namespace thalweg {

namespace {
constexpr auto SPIN = std::chrono::microseconds(50);
constexpr int INDEX = 20;  // bits of a ticket: 24 of the job's number, 20 of the count of tasks, 20 of the next task
constexpr uint64_t MASK = (uint64_t(1) << INDEX) - 1;
constexpr int64_t MOST = MASK - 4096;  // tasks of one ticket: late workers never push the next task beyond the field
}  // namespace

struct Pool {
    alignas(64) std::atomic<uint64_t> ticket{0};
    alignas(64) std::atomic<int64_t> done{0};
    alignas(64) std::atomic<int> sleepers{0};
    std::atomic<bool> closing{false};
    Task task = nullptr;
    void* job = nullptr;
    std::mutex mutex;
    std::condition_variable wake;
    std::vector<std::thread> workers;

    static uint64_t number(uint64_t t) { return t >> (2 * INDEX); }

    // Take and run tasks of the current job until none is left.
    void help() {
        uint64_t t = ticket.load(std::memory_order_acquire);
        while ((t & MASK) < ((t >> INDEX) & MASK)) {
            if (!ticket.compare_exchange_weak(t, t + 1, std::memory_order_acq_rel)) continue;
            // The job cannot be replaced before this task is counted as done.
            task(job, int64_t(t & MASK));
            done.fetch_add(1, std::memory_order_release);
            t = ticket.load(std::memory_order_acquire);
        }
    }

    void work() {
        uint64_t seen = 0;
        auto since = std::chrono::steady_clock::now();
        for (;;) {
            uint64_t now = number(ticket.load(std::memory_order_acquire));
            if (now != seen) {
                seen = now;
                help();
                since = std::chrono::steady_clock::now();
            }
            for (int i = 0; i < 64 && number(ticket.load(std::memory_order_acquire)) == seen; ++i) RELAX();
            if (closing.load()) return;
            if (std::chrono::steady_clock::now() - since < SPIN) continue;
            std::unique_lock<std::mutex> lock(mutex);
            sleepers.fetch_add(1);
            wake.wait(lock, [&] { return closing.load() || number(ticket.load()) != seen; });
            sleepers.fetch_sub(1);
            if (closing.load()) return;
        }
    }
};

Pool* pool_open(int threads) {
    Pool* p = new Pool;
    for (int i = 1; i < threads; ++i) p->workers.emplace_back([p] { p->work(); });
    return p;
}

void pool_close(Pool* p) {
    {
        std::lock_guard<std::mutex> lock(p->mutex);
        p->closing.store(true);
    }
    p->wake.notify_all();
    for (auto& w : p->workers) w.join();
    delete p;
}

int pool_threads(const Pool* p) { return int(p->workers.size()) + 1; }

void run(Pool* p, int64_t tasks, Task task, void* job) {
    if (tasks <= 0) return;
    if (tasks == 1 || p->workers.empty()) {
        for (int64_t i = 0; i < tasks; ++i) task(job, i);
        return;
    }
    struct Part {
        Task task;
        void* job;
        int64_t base;
    };
    for (int64_t base = 0; base < tasks; base += MOST) {
        int64_t n = tasks - base < MOST ? tasks - base : MOST;
        Part part{task, job, base};
        p->task = [](void* j, int64_t i) {
            auto* part = static_cast<Part*>(j);
            part->task(part->job, part->base + i);
        };
        p->job = &part;
        p->done.store(0, std::memory_order_relaxed);
        uint64_t next = (Pool::number(p->ticket.load()) + 1) & 0xffffff;
        p->ticket.store(next << (2 * INDEX) | uint64_t(n) << INDEX);
        if (p->sleepers.load() > 0) {
            { std::lock_guard<std::mutex> lock(p->mutex); }
            p->wake.notify_all();
        }
        p->help();
        for (int spins = 0; p->done.load(std::memory_order_acquire) < n; ++spins) {
            if (spins < 20000) RELAX();
            else std::this_thread::yield();
        }
    }
}

}  // namespace thalweg
