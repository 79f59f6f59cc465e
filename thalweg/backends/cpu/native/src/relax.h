// What a thread does between two looks at something that another one is about to write.
#pragma once
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#define RELAX() _mm_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("isb")  // waits for some cycles, where `yield` does nothing on most processors
#else
#define RELAX() std::this_thread::yield()
#endif
