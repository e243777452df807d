// What comes between two convolutions: BatchNorm, a residual sum, pooling and ReLU, in one go.

#include "_vectors.h"

#include <array>
#include <cmath>
#include <limits>

extern "C" {

// y = relu(pool(norm(x) + residual)), each of them or not. Mirrored by _library.FinishCall; every field has 8 bytes.
struct Finish {
    const void *x, *residual;     // [channels][height][width][images]; residual may be null
    const void *scale, *shift;    // by channel, or null
    void *y, *mean, *variance;    // y is smaller by the window; the others are of norm
    const void *dy;               // from here on for gradients, which take y only if there was a residual
    void *dx, *dresidual;         // dresidual is null if there is no residual
    void *dscale, *dshift;
    int64_t channels, height, width, images;
    int64_t window_height, window_width;  // 1 if there is no pooling; windows lie side by side
    int64_t norm, relu;
    double eps;
};

// [images][pixels][channels] to [channels][pixels][images].
struct Enter {
    const void *x;
    void *y;
    int64_t images, pixels, channels;
};

struct Average {
    void *x, *y;  // one of them is written
    int64_t channels, pixels, images;
};

struct Pooling {
    int64_t channels, height, width, images;
    int64_t out_height, out_width, window_height, window_width, step_height, step_width, top, left;
};

}  // extern "C"

namespace {

constexpr int64_t kSumPiece = 4096;  // in a piece sums are of vectors, between pieces of double

// Sums over a piece, several side by side: an addition waits for the one before it. each(kind, i, sums) adds what is at
// i, a vector or a single number.
template <typename T, int kCount, typename Each>
std::array<T, kCount> sums_of(int64_t first, int64_t last, const Each &each) {
    constexpr int64_t lanes = Vector<T>::lanes, kSide = 4;
    V<T> wide[kSide][kCount] = {};
    std::array<T, kCount> found{};
    int64_t i = first;
    for (; i + kSide * lanes <= last; i += kSide * lanes)
        for (int64_t side = 0; side < kSide; ++side) each(Vector<T>{}, i + side * lanes, wide[side]);
    for (; i + lanes <= last; i += lanes) each(Vector<T>{}, i, wide[0]);
    for (; i < last; ++i) each(Single<T>{}, i, found.data());
    for (int k = 0; k < kCount; ++k) {
        const V<T> all = (wide[0][k] + wide[1][k]) + (wide[2][k] + wide[3][k]);
        for (int64_t lane = 0; lane < lanes; ++lane) found[k] += all[lane];
    }
    return found;
}

// Mean and variance in one pass over memory; within a piece, which stays in the cache, in two.
template <typename T>
void moments(const T *x, int64_t n, double &mean, double &variance) {
    double seen = 0, squares = 0;
    mean = 0;
    for (int64_t start = 0; start < n; start += kSumPiece) {
        const int64_t length = std::min(kSumPiece, n - start);
        const T *at = x + start;
        const auto [sum] =
            sums_of<T, 1>(0, length, [at](auto kind, int64_t i, auto *to) { to[0] += kind.load(at + i); });
        const T middle = sum / T(length);
        // What rounding left the middle off by, and squares about it.
        const auto [rest, square] = sums_of<T, 2>(0, length, [at, middle](auto kind, int64_t i, auto *to) {
            const auto off = kind.load(at + i) - middle;
            to[0] += off, to[1] += off * off;
        });
        const double off = double(rest) / length;
        const double apart = middle + off - mean, share = length / (seen + length);
        mean += apart * share;
        squares += square - off * rest + apart * apart * seen * share;
        seen += length;
    }
    variance = squares / n;
}

// What norm does to a channel: (x - mean) * factor + shift.
template <typename T>
struct Affine {
    T mean = 0, factor = 1, shift = 0;
    template <typename Any>
    Any operator()(Any x) const {
        return (x - mean) * factor + shift;
    }
};

template <typename T>
Affine<T> affine(const Finish &f, int64_t channel) {
    if (!f.norm) return {};
    auto of = [&](const void *p, T otherwise) { return p ? static_cast<const T *>(p)[channel] : otherwise; };
    const double inverse = 1 / std::sqrt(double(of(f.variance, 0)) + f.eps);
    return {of(f.mean, 0), T(of(f.scale, 1) * inverse), of(f.shift, 0)};
}

constexpr int64_t kChunk = 128;  // images of a window that are looked at together

// Which of a window is the largest, for some images: the first of equal ones, and NaN before all, as in torch.
template <typename T>
struct Window {
    alignas(kBytes) T best[kChunk];
    alignas(kBytes) int32_t which[kChunk];

    void look(const Finish &f, const Affine<T> &norm, const T *x, int64_t images) {
        for (int64_t k = 0; k < f.window_height * f.window_width; ++k) {
            const T *__restrict seen = x + place(f, k);
            if (k == 0) {
#pragma omp simd
                for (int64_t i = 0; i < images; ++i) best[i] = norm(seen[i]), which[i] = 0;
                continue;
            }
#pragma omp simd
            for (int64_t i = 0; i < images; ++i) {
                const T z = norm(seen[i]);
                const bool larger = !(z <= best[i]) && best[i] == best[i];
                best[i] = larger ? z : best[i];
                which[i] = larger ? int32_t(k) : which[i];
            }
        }
    }

    static int64_t place(const Finish &f, int64_t k) {
        return (k / f.window_width * f.width + k % f.window_width) * f.images;
    }
};

// work(x, y, images) for some images of every window of a channel.
template <typename Work>
void for_windows(const Finish &f, const Work &work) {
    const int64_t out_height = f.height / f.window_height, out_width = f.width / f.window_width;
    for (int64_t h = 0; h < out_height; ++h)
        for (int64_t w = 0; w < out_width; ++w)
            for (int64_t first = 0; first < f.images; first += kChunk)
                work((h * f.window_height * f.width + w * f.window_width) * f.images + first,
                     (h * out_width + w) * f.images + first, std::min(kChunk, f.images - first));
}

template <typename T>
void finish_channel(const Finish &f, int64_t channel) {
    const int64_t n = f.height * f.width * f.images;
    const int64_t out = (f.height / f.window_height) * (f.width / f.window_width) * f.images;
    const T *__restrict x = static_cast<const T *>(f.x) + channel * n;
    T *__restrict y = static_cast<T *>(f.y) + channel * out;
    if (f.norm) {
        double mean, variance;
        moments(x, n, mean, variance);
        static_cast<T *>(f.mean)[channel] = T(mean), static_cast<T *>(f.variance)[channel] = T(variance);
    }
    const Affine<T> norm = affine<T>(f, channel);
    const T least = f.relu ? T(0) : -std::numeric_limits<T>::infinity();
    if (f.window_height * f.window_width > 1) {
        Window<T> window;
        for_windows(f, [&](int64_t from, int64_t to, int64_t images) {
            window.look(f, norm, x + from, images);
            T *__restrict into = y + to;
#pragma omp simd
            for (int64_t i = 0; i < images; ++i) into[i] = window.best[i] < least ? least : window.best[i];
        });
    } else if (f.residual) {
        const T *__restrict residual = static_cast<const T *>(f.residual) + channel * n;
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
            const T z = norm(x[i]) + residual[i];
            y[i] = z < least ? least : z;
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
            const T z = norm(x[i]);
            y[i] = z < least ? least : z;
        }
    }
}

// A gradient to one place of a window, for the images in which that was the largest.
template <typename T>
void spread(int64_t images, int32_t place, const int32_t *__restrict which, const T *__restrict given,
            const T *__restrict x, T mean, T *__restrict d, T *__restrict along) {
#pragma omp simd
    for (int64_t i = 0; i < images; ++i) {
        const T g = which[i] == place ? given[i] : T(0);
        d[i] = g;
        along[i] += g * (x[i] - mean);
    }
}

// The sums that norm's own gradient needs: of the gradient before it, g, and of g * (x - mean).
struct Sums {
    double plain = 0, along = 0;
};

// What comes out of a ReLU that is not above this gives no gradient. Without one all is: no comparison with NaN holds.
template <typename T>
T least(const Finish &f) {
    return f.relu ? T(0) : std::numeric_limits<T>::quiet_NaN();
}

// With pooling: the gradient before norm, to d, and its sums.
template <typename T>
Sums gradient_before_pooling(const Finish &f, const Affine<T> &norm, const T *x, const T *dy, T *d) {
    Window<T> window;
    alignas(kBytes) T sums[kChunk] = {}, alongs[kChunk] = {};  // by image: vectors are added up in the end
    const T none = least<T>(f), mean = norm.mean;
    if (f.height % f.window_height || f.width % f.window_width) std::fill(d, d + f.height * f.width * f.images, T(0));
    for_windows(f, [&](int64_t from, int64_t to, int64_t images) {
        window.look(f, norm, x + from, images);
        alignas(kBytes) T given[kChunk];
        const T *__restrict after = dy + to;
#pragma omp simd
        for (int64_t i = 0; i < images; ++i) {
            given[i] = window.best[i] <= none ? T(0) : after[i];
            sums[i] += given[i];
        }
        for (int64_t k = 0; k < f.window_height * f.window_width; ++k) {
            const int64_t at = from + Window<T>::place(f, k);
            spread(images, int32_t(k), window.which, given, x + at, mean, d + at, alongs);
        }
    });
    Sums found;
    for (int64_t i = 0; i < kChunk; ++i) found.plain += sums[i], found.along += alongs[i];
    return found;
}

// Without: the sums, and the gradient before norm to d if that is wanted. out(kind, i) is what came out of the ReLU.
template <typename T, typename Out>
Sums gradient_before_relu(const Finish &f, T mean, const T *x, const T *dy, T *d, const Out &out) {
    const int64_t n = f.height * f.width * f.images;
    const T none = least<T>(f);
    Sums found;
    for (int64_t start = 0; start < n; start += kSumPiece) {
        const int64_t end = std::min(start + kSumPiece, n);
        const auto [plain, along] = sums_of<T, 2>(start, end, [&](auto kind, int64_t i, auto *to) {
            auto g = kind.load(dy + i);
            g = out(kind, i) <= none ? decltype(g){} : g;
            if (d) kind.store(d + i, g);
            to[0] += g, to[1] += g * (kind.load(x + i) - mean);
        });
        found.plain += plain, found.along += along;
    }
    return found;
}

// given(i) is the gradient behind norm. Backwards: what was read last for the sums is still in the cache.
template <typename T, typename Given>
void gradient_of_norm(const Finish &f, int64_t channel, const Affine<T> &norm, const Sums &sums, const T *x, T *dx,
                      const Given &given) {
    const int64_t n = f.height * f.width * f.images;
    const double inverse = 1 / std::sqrt(double(static_cast<const T *>(f.variance)[channel]) + f.eps);
    static_cast<T *>(f.dshift)[channel] = T(sums.plain), static_cast<T *>(f.dscale)[channel] = T(sums.along * inverse);
    const T common = T(sums.plain / n), slope = T(sums.along * inverse * inverse / n);
    for (int64_t end = n; end > 0; end -= std::min(kSumPiece, end))
#pragma omp simd
        for (int64_t i = std::max<int64_t>(0, end - kSumPiece); i < end; ++i)
            dx[i] = norm.factor * (given(i) - common - slope * (x[i] - norm.mean));
}

template <typename T>
void finish_gradient_channel(const Finish &f, int64_t channel) {
    const int64_t n = f.height * f.width * f.images;
    const int64_t out = (f.height / f.window_height) * (f.width / f.window_width) * f.images;
    const Affine<T> norm = affine<T>(f, channel);
    const T none = least<T>(f);
    const T *x = static_cast<const T *>(f.x) + channel * n, *dy = static_cast<const T *>(f.dy) + channel * out;
    T *dx = static_cast<T *>(f.dx) + channel * n;
    if (f.window_height * f.window_width > 1) {
        const Sums sums = gradient_before_pooling(f, norm, x, dy, dx);
        if (f.norm) gradient_of_norm(f, channel, norm, sums, x, dx, [=](int64_t i) { return dx[i]; });
    } else if (f.y) {  // there was a residual: only the result tells which side of the ReLU it was on
        const T *y = static_cast<const T *>(f.y) + channel * n;
        T *d = f.dresidual ? static_cast<T *>(f.dresidual) + channel * n : dx;
        const Sums sums = gradient_before_relu(f, norm.mean, x, dy, d,
                                               [=](auto kind, int64_t i) { return kind.load(y + i); });
        if (f.norm) gradient_of_norm(f, channel, norm, sums, x, dx, [=](int64_t i) { return d[i]; });
    } else {
        auto gradient = [=](int64_t i) { return norm(x[i]) <= none ? T(0) : dy[i]; };
        if (f.norm) {
            const Sums sums = gradient_before_relu(f, norm.mean, x, dy, static_cast<T *>(nullptr),
                                                   [=](auto kind, int64_t i) { return norm(kind.load(x + i)); });
            gradient_of_norm(f, channel, norm, sums, x, dx, gradient);
        } else {
#pragma omp simd
            for (int64_t i = 0; i < n; ++i) dx[i] = gradient(i);
        }
    }
}

int64_t numbers(const Finish &f) {
    return f.channels * f.height * f.width * f.images;
}

// The largest of each window and its number in the window; padding is never the largest.
template <typename T>
void pool(const Pooling &p, const T *x, T *y, int32_t *which, int64_t threads) {
    share_out(p.channels, p.channels * p.height * p.width * p.images, threads, [&](int64_t ch) {
        for (int64_t h = 0; h < p.out_height; ++h)
            for (int64_t w = 0; w < p.out_width; ++w) {
                const int64_t o = ((ch * p.out_height + h) * p.out_width + w) * p.images;
                T *__restrict best = y + o;
                int32_t *__restrict number = which + o;
                bool begun = false;
                for (int64_t k = 0; k < p.window_height * p.window_width; ++k) {
                    const int64_t row = h * p.step_height - p.top + k / p.window_width;
                    const int64_t column = w * p.step_width - p.left + k % p.window_width;
                    if (row < 0 || row >= p.height || column < 0 || column >= p.width) continue;
                    const T *__restrict seen = x + ((ch * p.height + row) * p.width + column) * p.images;
                    if (!begun) {
                        for (int64_t i = 0; i < p.images; ++i) best[i] = seen[i], number[i] = int32_t(k);
                        begun = true;
                        continue;
                    }
#pragma omp simd
                    for (int64_t i = 0; i < p.images; ++i) {
                        const bool larger = !(seen[i] <= best[i]) && best[i] == best[i];  // NaN wins, as in torch
                        best[i] = larger ? seen[i] : best[i];
                        number[i] = larger ? int32_t(k) : number[i];
                    }
                }
            }
    });
}

template <typename T>
void pool_gradient(const Pooling &p, const T *dy, const int32_t *which, T *dx, int64_t threads) {
    const bool apart = p.step_height >= p.window_height && p.step_width >= p.window_width;
    std::memset(dx, 0, sizeof(T) * p.channels * p.height * p.width * p.images);
    share_out(p.channels, p.channels * p.height * p.width * p.images, threads, [&](int64_t ch) {
        for (int64_t h = 0; h < p.out_height; ++h)
            for (int64_t w = 0; w < p.out_width; ++w) {
                const int64_t o = ((ch * p.out_height + h) * p.out_width + w) * p.images;
                const T *__restrict given = dy + o;
                const int32_t *__restrict number = which + o;
                for (int64_t k = 0; k < p.window_height * p.window_width; ++k) {
                    const int64_t row = h * p.step_height - p.top + k / p.window_width;
                    const int64_t column = w * p.step_width - p.left + k % p.window_width;
                    if (row < 0 || row >= p.height || column < 0 || column >= p.width) continue;
                    T *__restrict to = dx + ((ch * p.height + row) * p.width + column) * p.images;
                    if (apart) {  // no other window has written here
#pragma omp simd
                        for (int64_t i = 0; i < p.images; ++i) to[i] = number[i] == int32_t(k) ? given[i] : T(0);
                        continue;
                    }
#pragma omp simd
                    for (int64_t i = 0; i < p.images; ++i) to[i] += number[i] == int32_t(k) ? given[i] : T(0);
                }
            }
    });
}

// The mean of every channel of an image, and its gradient: the same for all pixels.
template <typename T>
void average(const T *__restrict x, T *__restrict y, int64_t channels, int64_t pixels, int64_t images) {
    for (int64_t ch = 0; ch < channels; ++ch) {
        T *__restrict to = y + ch * images;
        std::fill(to, to + images, T(0));
        for (int64_t p = 0; p < pixels; ++p) {
            const T *__restrict from = x + (ch * pixels + p) * images;
#pragma omp simd
            for (int64_t i = 0; i < images; ++i) to[i] += from[i];
        }
#pragma omp simd
        for (int64_t i = 0; i < images; ++i) to[i] /= T(pixels);
    }
}

template <typename T>
void average_gradient(T *__restrict dx, const T *__restrict dy, int64_t channels, int64_t pixels, int64_t images) {
    for (int64_t ch = 0; ch < channels; ++ch)
        for (int64_t p = 0; p < pixels; ++p) {
            const T *__restrict from = dy + ch * images;
            T *__restrict to = dx + (ch * pixels + p) * images;
#pragma omp simd
            for (int64_t i = 0; i < images; ++i) to[i] = from[i] / T(pixels);
        }
}

template <typename T>
void enter(const Enter &e) {
    constexpr int64_t lanes = Vector<T>::lanes;
    const T *x = static_cast<const T *>(e.x);
    T *y = static_cast<T *>(e.y);
    const int64_t n = e.pixels * e.channels;
    auto row = [&](int64_t i) { return y + (i % e.channels * e.pixels + i / e.channels) * e.images; };
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        int64_t image = 0;
        for (; image + lanes <= e.images; image += lanes) {
            V<T> block[lanes];
            for (int64_t k = 0; k < lanes; ++k) block[k] = Vector<T>::load(x + (image + k) * n + i);
            transpose<T>(block);
            for (int64_t k = 0; k < lanes; ++k) Vector<T>::store(row(i + k) + image, block[k]);
        }
        for (; image < e.images; ++image)
            for (int64_t k = 0; k < lanes; ++k) row(i + k)[image] = x[image * n + i + k];
    }
    for (; i < n; ++i)
        for (int64_t image = 0; image < e.images; ++image) row(i)[image] = x[image * n + i];
}

}  // namespace

#define FOR_TYPE(T, name)                                                                                            \
    void lean_finish_##name(const Finish *f, int64_t threads) {                                                       \
        share_out(f->channels, numbers(*f), threads, [&](int64_t channel) { finish_channel<T>(*f, channel); });       \
    }                                                                                                                \
    void lean_finish_gradient_##name(const Finish *f, int64_t threads) {                                              \
        share_out(f->channels, numbers(*f), threads, [&](int64_t channel) { finish_gradient_channel<T>(*f, channel); }); \
    }                                                                                                                \
    void lean_enter_##name(const Enter *e, int64_t) { enter<T>(*e); }                                                 \
    void lean_average_##name(const Average *a, int64_t) {                                                             \
        average(static_cast<const T *>(a->x), static_cast<T *>(a->y), a->channels, a->pixels, a->images);             \
    }                                                                                                                \
    void lean_average_gradient_##name(const Average *a, int64_t) {                                                    \
        average_gradient(static_cast<T *>(a->x), static_cast<const T *>(a->y), a->channels, a->pixels, a->images);    \
    }                                                                                                                \
    void lean_pool_##name(const Pooling *p, const T *x, T *y, int32_t *which, int64_t threads) {                      \
        pool(*p, x, y, which, threads);                                                                               \
    }                                                                                                                \
    void lean_pool_gradient_##name(const Pooling *p, const T *dy, const int32_t *which, T *dx, int64_t threads) {     \
        pool_gradient(*p, dy, which, dx, threads);                                                                    \
    }

extern "C" {

// A call of any of the functions above, and of those of other files, that take what they need as one structure.
struct Call {
    void (*function)(const void *, int64_t);
    const void *what;
};

void lean_play(const Call *calls, int64_t count, int64_t threads) {
    for (int64_t i = 0; i < count; ++i) calls[i].function(calls[i].what, threads);
}

FOR_TYPE(float, f32)
FOR_TYPE(double, f64)
}
