// One DessiLBI step for many tensors, each weight read and written once; without a gradient, the coupling alone.
//
// A tensor is seen as memory [outer][groups][inner]: any dense layout of a tensor whose groups are the
// slices along one dimension. Gamma is never stored: the norm of a group of V_k is taken just before its
// update, and Gamma_k is rebuilt from it element by element.
//
// No group is ever split between threads and every sum has a fixed order, so the result does not depend
// on the number of threads.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

extern "C" {

enum : int32_t { kNoTwin = 0, kLasso = 1, kGroupLasso = 2 };

// Mirrored by _fused._TENSOR; every field has 8 bytes.
struct TensorView {
    void *w;            // weights, updated
    const void *g;      // gradient; null where another optimizer takes it, and the coupling alone moves W
    void *v;            // dual variable, updated; null without a twin
    void *buf;          // momentum buffer, updated; null without momentum
    const void *lambds; // thresholds: null (use lambd), one number (Lasso) or one a group
    const uint8_t *update_mask; // where the loss moves a weight: null (everywhere) or one byte a weight, 0 or 1
    const void *norms; // of the groups of V_k: null (take them here) or one a group, if others are part of them
    int64_t outer, groups, inner;
    int64_t penalty;
    double lambd;
};

struct Options {
    double lr, kappa, nu, momentum, weight_decay;
    int64_t nesterov, decoupled_weight_decay, coupling_in_momentum, maximize;
};

}  // extern "C"

namespace {

template <typename T>
struct Coefficients {
    T sign, l2, decay, couple_in, couple_out, momentum, take_gradient, take_buffer, lr, alpha, inv_nu, kappa;

    explicit Coefficients(const Options &o)
        : sign(o.maximize ? -1 : 1),
          l2(o.decoupled_weight_decay ? 0 : o.weight_decay),
          decay(o.decoupled_weight_decay ? o.weight_decay : 0),
          couple_in(o.coupling_in_momentum ? 1 : 0),
          couple_out(o.coupling_in_momentum ? 0 : 1),
          momentum(o.momentum),
          take_gradient(o.nesterov ? 1 : 0),
          take_buffer(o.nesterov ? o.momentum : 1),
          lr(o.lr),
          alpha(o.lr / o.kappa),
          inv_nu(1 / o.nu),
          kappa(o.kappa) {}
};

// Gamma_i = kappa * prox(V)_i: by element, by a factor for the whole run, by a factor for each element.
template <typename T>
struct SoftThreshold {
    T kappa, threshold;
    T operator()(T v, int64_t) const {
        T inside = v < -threshold ? -threshold : (v > threshold ? threshold : v);
        return kappa * (v - inside);
    }
};
template <typename T>
struct OneFactor {
    T factor;
    T operator()(T v, int64_t) const { return factor * v; }
};
template <typename T>
struct ManyFactors {
    const T *__restrict factor;
    T operator()(T v, int64_t i) const { return factor[i] * v; }
};
struct NoTwin {};

// a where every bit of `mask` is 1, b where every bit is 0. Compilers do not vectorise `byte ? a : b`.
template <typename T>
using Word = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
template <typename T>
T select(Word<T> mask, T a, T b) {
    Word<T> x, y;
    std::memcpy(&x, &a, sizeof(T));
    std::memcpy(&y, &b, sizeof(T));
    x = (x & mask) | (y & ~mask);
    std::memcpy(&a, &x, sizeof(T));
    return a;
}

// One step for a run of n elements. A weight that the loss does not move (kPart) still follows the
// coupling; its momentum rests. It also returns the sum of squares of `ahead` (kAhead), the V of the
// next group: norms taken in a pass of their own would read memory one stream at a time.
template <typename T, bool kGradient, bool kMomentum, bool kPart, bool kAhead = false, typename Prox>
T update(T *__restrict w, const T *__restrict g, T *__restrict v, T *__restrict buf,
         const uint8_t *__restrict moves, int64_t n, const Coefficients<T> &k, Prox prox,
         const T *__restrict ahead = nullptr) {
    const Coefficients<T> c = k;
    T squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < n; ++i) {
        T weight = w[i];
        Word<T> moved = 0;
        if constexpr (kPart) moved = -Word<T>(moves[i]);
        if constexpr (kAhead) squares += ahead[i] * ahead[i];
        T gradient = 0;
        if constexpr (kGradient) gradient = c.sign * g[i] + c.l2 * weight;
        T coupling = 0;
        if constexpr (!std::is_same_v<Prox, NoTwin>) {
            coupling = (weight - prox(v[i], i)) * c.inv_nu;
            gradient += c.couple_in * coupling;
            v[i] += c.alpha * coupling;
        }
        T direction = gradient;
        if constexpr (kMomentum) {
            T b = c.momentum * buf[i] + gradient;
            if constexpr (kPart) b = select(moved, b, buf[i]);
            buf[i] = b;
            direction = c.take_gradient * gradient + c.take_buffer * b;
        }
        T change = c.lr * (direction + c.couple_out * coupling) + c.decay * weight;
        if constexpr (kPart) change = select(moved, change, c.lr * coupling);
        w[i] = weight - change;
    }
    return squares;
}

template <typename T>
T sum_of_squares(const T *__restrict x, int64_t n) {
    T s = 0;
#pragma omp simd reduction(+ : s)
    for (int64_t i = 0; i < n; ++i) s += x[i] * x[i];
    return s;
}

template <typename T>
void add_squares(T *__restrict sums, const T *__restrict x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) sums[i] += x[i] * x[i];
}

template <typename T>
T group_factor(T norm, T lambd, T kappa) {
    return norm > lambd ? kappa * (1 - lambd / norm) : T(0);
}

// Groups [begin, end) of one tensor.
template <typename T, bool kGradient, bool kMomentum, bool kPart>
void step_groups(const TensorView &t, int64_t begin, int64_t end, const Coefficients<T> &k) {
    const T lambd = T(t.lambd);
    T *w = static_cast<T *>(t.w), *v = static_cast<T *>(t.v), *buf = static_cast<T *>(t.buf);
    const T *g = static_cast<const T *>(t.g), *lambds = static_cast<const T *>(t.lambds),
            *norms = static_cast<const T *>(t.norms);
    const uint8_t *moves = t.update_mask;
    auto at = [](auto *p, int64_t i) { return p ? p + i : p; };

    if (t.penalty == kNoTwin) {
        update<T, kGradient, kMomentum, kPart>(w + begin, at(g, begin), v, at(buf, begin), at(moves, begin),
                                               end - begin, k, NoTwin{});
    } else if (t.penalty == kLasso) {
        T threshold = lambds ? lambds[0] : lambd;
        update<T, kGradient, kMomentum, kPart>(w + begin, at(g, begin), v + begin, at(buf, begin), at(moves, begin),
                                               end - begin, k, SoftThreshold<T>{k.kappa, threshold});
    } else {
        auto factor = [&](T squares, int64_t i) {
            return group_factor(norms ? norms[i] : std::sqrt(squares), lambds ? lambds[i] : lambd, k.kappa);
        };
        if (t.outer == 1) {  // a group is one run of memory
            T squares = sum_of_squares(v + begin * t.inner, t.inner);
            for (int64_t i = begin; i < end; ++i) {
                int64_t j = i * t.inner;
                auto run = i + 1 < end ? update<T, kGradient, kMomentum, kPart, true, OneFactor<T>>
                                       : update<T, kGradient, kMomentum, kPart, false, OneFactor<T>>;
                squares = run(w + j, at(g, j), v + j, at(buf, j), at(moves, j), t.inner, k,
                              OneFactor<T>{factor(squares, i)}, v + j + t.inner);
            }
            return;
        }
        const int64_t row = t.groups * t.inner, run = (end - begin) * t.inner;
        std::vector<T> squares(run, T(0)), factors(run);
        for (int64_t j = begin * t.inner; j < t.outer * row; j += row) add_squares(squares.data(), v + j, run);
        for (int64_t i = begin; i < end; ++i) {
            T *first = squares.data() + (i - begin) * t.inner;
            std::fill_n(factors.data() + (i - begin) * t.inner, t.inner,
                        factor(std::accumulate(first, first + t.inner, T(0)), i));
        }
        for (int64_t j = begin * t.inner; j < t.outer * row; j += row)
            update<T, kGradient, kMomentum, kPart>(w + j, at(g, j), v + j, at(buf, j), at(moves, j), run, k,
                                                   ManyFactors<T>{factors.data()});
    }
}

struct Task {
    const TensorView *tensor;
    int64_t begin, end;
};

template <typename T>
void step(const TensorView *tensors, int64_t count, const Options &options, int64_t threads) {
    constexpr int64_t kTaskElements = 1 << 16;  // small enough to balance, large enough to amortise
    constexpr int64_t kRunElements = 256;
    std::vector<Task> tasks;
    int64_t total = 0;
    for (int64_t i = 0; i < count; ++i) {
        const TensorView &t = tensors[i];
        int64_t per_group = t.outer * t.inner;
        if (per_group == 0) continue;
        // Runs of memory shorter than kRunElements waste the cache lines at their ends.
        int64_t chunk = std::max<int64_t>(kTaskElements / per_group, t.outer == 1 ? 1 : kRunElements / t.inner);
        chunk = std::max<int64_t>(chunk, 1);
        for (int64_t b = 0; b < t.groups; b += chunk) tasks.push_back({&t, b, std::min(b + chunk, t.groups)});
        total += t.groups * per_group;
    }
    const Coefficients<T> k(options);
    std::atomic<size_t> next{0};
    auto work = [&] {
        for (size_t i; (i = next.fetch_add(1)) < tasks.size();) {
            const Task &task = tasks[i];
            const TensorView &t = *task.tensor;
            auto run = !t.g  ? step_groups<T, false, false, false>
                       : t.buf ? (t.update_mask ? step_groups<T, true, true, true> : step_groups<T, true, true, false>)
                               : (t.update_mask ? step_groups<T, true, false, true> : step_groups<T, true, false, false>);
            run(t, task.begin, task.end, k);
        }
    };
    // Below a quarter of a million weights a second thread costs more than it saves.
    threads = std::min<int64_t>(threads, 1 + total / (1 << 18));
    std::vector<std::thread> helpers;
    try {
        for (int64_t i = 1; i < threads; ++i) helpers.emplace_back(work);
    } catch (const std::system_error &) {
        // No more threads to be had: those that exist, at least this one, do the work.
    }
    work();
    for (auto &h : helpers) h.join();
}

}  // namespace

extern "C" {

void dessilbi_step_f32(const TensorView *tensors, int64_t count, const Options *options, int64_t threads) {
    step<float>(tensors, count, *options, threads);
}

void dessilbi_step_f64(const TensorView *tensors, int64_t count, const Options *options, int64_t threads) {
    step<double>(tensors, count, *options, threads);
}

}  // extern "C"
