// What the kernels share: vectors of whatever width the machine has, and threads.
//
// Memory is [channel][row][column][image] everywhere: neighbouring numbers belong to different images, so that
// every weight is multiplied with whole vectors, however few channels there are.
//
// No sum is ever split between threads and each has a fixed order, so results do not depend on their number.

#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif

template <typename T>
struct Vector {
    typedef T type __attribute__((vector_size(kBytes)));
    static constexpr int64_t lanes = kBytes / sizeof(T);
    static type load(const T *p) {
        type v;
        std::memcpy(&v, p, kBytes);  // not through a vector's pointer: memory need not be aligned
        return v;
    }
    static void store(T *p, type v) { std::memcpy(p, &v, kBytes); }
};

template <typename T>
using V = typename Vector<T>::type;

// A number in a vector's place: what is left behind the last whole one.
template <typename T>
struct Single {
    static T load(const T *p) { return *p; }
    static void store(T *p, T v) { *p = v; }
};

// Keeps what was loaded in its register: the compiler takes a load for free and would repeat it at every use.
template <typename Any>
inline void stay(Any &v) {
#if defined(__AVX512F__)
    __asm__("" : "+v"(v));
#elif defined(__x86_64__)
    __asm__("" : "+x"(v));
#elif defined(__aarch64__)
    __asm__("" : "+w"(v));
#endif
}

// a * b + c for single numbers, rounded once wherever the machine can: left to itself the compiler may do so in one
// place and not in another, and sums would depend on how work is divided.
template <typename T>
T multiply_add(T a, T b, T c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return std::fma(a, b, c);
#else
    return a * b + c;
#endif
}

// Rows of a square to its columns: blocks of `width` beside the diagonal are exchanged, then those within.
template <typename T, int64_t width, int64_t... I>
__attribute__((always_inline)) inline void swap_blocks(V<T> &a, V<T> &b, std::integer_sequence<int64_t, I...>) {
    constexpr int64_t lanes = Vector<T>::lanes;
#if defined(__clang__) || __GNUC__ >= 12
    const V<T> low = __builtin_shufflevector(a, b, (I / width % 2 == 0 ? I : lanes + I - width)...);
    const V<T> high = __builtin_shufflevector(a, b, (I / width % 2 == 0 ? I + width : lanes + I)...);
#else
    V<T> low, high;
    ((low[I] = I / width % 2 == 0 ? a[I] : b[I - width], high[I] = I / width % 2 == 0 ? a[I + width] : b[I]), ...);
#endif
    a = low, b = high;
}

template <typename T, int64_t width = Vector<T>::lanes / 2>
__attribute__((always_inline)) inline void transpose(V<T> *rows) {
    constexpr int64_t lanes = Vector<T>::lanes;
    for (int64_t i = 0; i < lanes; ++i)
        if (i / width % 2 == 0)
            swap_blocks<T, width>(rows[i], rows[i + width], std::make_integer_sequence<int64_t, lanes>{});
    if constexpr (width > 1) transpose<T, width / 2>(rows);
}

// work(i) for all i < tasks, on as many threads as pay for themselves.
template <typename Work>
void share_out(int64_t tasks, int64_t multiplications, int64_t threads, const Work &work) {
    threads = std::min({threads, tasks, 1 + multiplications / (1 << 22)});
    std::atomic<int64_t> next{0};
    auto run = [&] {
        for (int64_t i; (i = next.fetch_add(1)) < tasks;) work(i);
    };
    std::vector<std::thread> helpers;
    try {
        for (int64_t i = 1; i < threads; ++i) helpers.emplace_back(run);
    } catch (const std::system_error &) {
        // No more threads to be had: those that exist, at least this one, do the work.
    }
    run();
    for (auto &h : helpers) h.join();
}
