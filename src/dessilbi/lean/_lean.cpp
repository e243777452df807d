// Convolutions, poolings and BatchNorm of few channels or few weights, the images of a batch side by side.
//
// Memory is [channel][row][column][image]: neighbouring numbers belong to different images, so that every weight
// is multiplied with whole vectors, however few channels there are, and a weight that is zero is simply not
// there. A weight is an entry: its value, and how many pixels the input that it reads lies from that of the
// first entry, in an image with its padding around it.
//
// No output is ever split between threads and every sum has a fixed order, so the result does not depend on the
// number of threads.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <system_error>
#include <thread>
#include <vector>

extern "C" {

// Mirrored by _kernel.Correlation; every field has 8 bytes.
struct Correlation {
    const void *x;         // [..][height][width][images], padded
    void *y;               // [rows][out_height][out_width][images]: written forward, read for the gradient
    void *values;          // one an entry: read forward, written for the gradient
    const int64_t *first;  // by row, its first entry
    const int32_t *count;  // by row, how many of its entries there are; the others are taken for zero
    const int32_t *pixels; // by entry; if `shared`, of one row, and all rows have the same
    const void *bias;      // null or one a row
    int64_t rows, shared;
    int64_t width, images;
    int64_t out_height, out_width, step_height, step_width;
};

struct Pooling {
    int64_t channels, height, width, images;
    int64_t out_height, out_width, window_height, window_width, step_height, step_width, top, left;
};

}  // extern "C"

namespace {

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
        std::memcpy(&v, p, kBytes);
        return v;
    }
    static void store(T *p, type v) { std::memcpy(p, &v, kBytes); }
};

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

// Where outputs lie side by side in x as well: whole lines of pixels, or the images of one pixel.
struct Runs {
    int64_t lines, pieces, length, line_step, piece_step, out_step;
    explicit Runs(const Correlation &c)
        : lines(c.out_height),
          pieces(c.step_width == 1 ? 1 : c.out_width),
          length(c.step_width == 1 ? c.out_width * c.images : c.images),
          line_step(c.step_height * c.width * c.images),
          piece_step(c.step_width * c.images),
          out_step(c.out_width * c.images) {}
};

// kRows rows of y, kVectors vectors of each, in registers.
template <typename T, int kRows, int kVectors>
void sum_vectors(const T *x, T *const *y, const T *const *values, const int32_t *pixels, int64_t entries,
                 int64_t images, const T *start) {
    using V = Vector<T>;
    typename V::type sum[kRows][kVectors];
    for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kVectors; ++v) sum[r][v] = typename V::type{} + start[r];
    for (int64_t e = 0; e < entries; ++e) {
        const T *at = x + pixels[e] * images;
        typename V::type seen[kVectors];
        for (int v = 0; v < kVectors; ++v) seen[v] = V::load(at + v * V::lanes);
        for (int r = 0; r < kRows; ++r) {
            T weight = values[r][e];
            for (int v = 0; v < kVectors; ++v) sum[r][v] += seen[v] * weight;
        }
    }
    for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kVectors; ++v) V::store(y[r] + v * V::lanes, sum[r][v]);
}

template <typename T, int kRows, int kVectors>
void correlate_rows(const Correlation &c, int64_t row) {
    using V = Vector<T>;
    const Runs runs(c);
    const int64_t area = c.out_height * c.out_width * c.images;
    const int32_t *pixels = c.pixels + (c.shared ? 0 : c.first[row]);
    const int64_t entries = c.count[row];
    const T *values[kRows];
    T start[kRows], *out[kRows];
    for (int r = 0; r < kRows; ++r) {
        values[r] = static_cast<const T *>(c.values) + c.first[row + r];
        start[r] = c.bias ? static_cast<const T *>(c.bias)[row + r] : T(0);
    }
    for (int64_t line = 0; line < runs.lines; ++line)
        for (int64_t piece = 0; piece < runs.pieces; ++piece) {
            const T *x = static_cast<const T *>(c.x) + line * runs.line_step + piece * runs.piece_step;
            for (int r = 0; r < kRows; ++r)
                out[r] = static_cast<T *>(c.y) + (row + r) * area + line * runs.out_step + piece * c.images;
            auto ahead = [&](int64_t n) {
                x += n;
                for (int r = 0; r < kRows; ++r) out[r] += n;
            };
            int64_t left = runs.length;
            for (; left >= kVectors * V::lanes; left -= kVectors * V::lanes) {
                sum_vectors<T, kRows, kVectors>(x, out, values, pixels, entries, c.images, start);
                ahead(kVectors * V::lanes);
            }
            for (; left >= V::lanes; left -= V::lanes) {
                sum_vectors<T, kRows, 1>(x, out, values, pixels, entries, c.images, start);
                ahead(V::lanes);
            }
            for (; left > 0; --left) {
                for (int r = 0; r < kRows; ++r) {
                    T sum = start[r];
                    for (int64_t e = 0; e < entries; ++e) sum += values[r][e] * x[pixels[e] * c.images];
                    *out[r] = sum;
                }
                ahead(1);
            }
        }
}

// Adds y times what an entry reads over a piece of memory: kRows rows, kEntries entries of each.
template <typename T, int kRows, int kEntries>
void add_products(const T *x, const T *y, int64_t area, const int32_t *pixels, int64_t images, int64_t length,
                  T *sums, T *rest) {
    using V = Vector<T>;
    typename V::type sum[kEntries][kRows];
    std::memcpy(sum, sums, sizeof sum);  // not a vector's pointer: memory need not be aligned
    const T *read[kEntries];
    for (int e = 0; e < kEntries; ++e) read[e] = x + pixels[e] * images;
    int64_t i = 0;
    for (; i + V::lanes <= length; i += V::lanes) {
        typename V::type seen[kEntries];
        for (int e = 0; e < kEntries; ++e) seen[e] = V::load(read[e] + i);
        for (int r = 0; r < kRows; ++r) {
            typename V::type out = V::load(y + r * area + i);
            for (int e = 0; e < kEntries; ++e) sum[e][r] += seen[e] * out;
        }
    }
    std::memcpy(sums, sum, sizeof sum);
    for (; i < length; ++i)
        for (int e = 0; e < kEntries; ++e)
            for (int r = 0; r < kRows; ++r) rest[e * kRows + r] += read[e][i] * y[r * area + i];
}

template <typename T, int kRows>
void gradient_rows(const Correlation &c, int64_t row) {
    using V = Vector<T>;
    constexpr int kEntries = kRows == 1 ? 4 : 3;  // 3: the columns of the usual window
    constexpr int64_t kPiece = 512;               // kRows + 1 of them fit into the first cache
    const Runs runs(c);
    const int64_t area = c.out_height * c.out_width * c.images;
    const int32_t *pixels = c.pixels + (c.shared ? 0 : c.first[row]);
    const int64_t entries = c.count[row];
    std::vector<T> sums(entries * kRows * V::lanes, T(0)), rest(entries * kRows, T(0));
    for (int64_t line = 0; line < runs.lines; ++line)
        for (int64_t piece = 0; piece < runs.pieces; ++piece)
            for (int64_t start = 0; start < runs.length; start += kPiece) {
                const T *x = static_cast<const T *>(c.x) + line * runs.line_step + piece * runs.piece_step + start;
                const T *y =
                    static_cast<const T *>(c.y) + row * area + line * runs.out_step + piece * c.images + start;
                const int64_t length = std::min(kPiece, runs.length - start);
                int64_t e = 0;
                for (; e + kEntries <= entries; e += kEntries)
                    add_products<T, kRows, kEntries>(x, y, area, pixels + e, c.images, length,
                                                     sums.data() + e * kRows * V::lanes, rest.data() + e * kRows);
                for (; e < entries; ++e)
                    add_products<T, kRows, 1>(x, y, area, pixels + e, c.images, length,
                                              sums.data() + e * kRows * V::lanes, rest.data() + e * kRows);
            }
    for (int64_t e = 0; e < entries; ++e)
        for (int r = 0; r < kRows; ++r) {
            const T *lanes = sums.data() + (e * kRows + r) * V::lanes;
            T sum = rest[e * kRows + r];
            for (int64_t k = 0; k < V::lanes; ++k) sum += lanes[k];
            static_cast<T *>(c.values)[c.first[row + r] + e] = sum;
        }
}

// Rows that share their entries are taken four at a time: what they read is read once.
template <typename T, bool kGradient>
void rows_in_blocks(const Correlation &c, int64_t threads) {
    const int64_t block = c.shared ? 4 : 1, tasks = (c.rows + block - 1) / block;
    const int64_t multiplications =
        std::accumulate(c.count, c.count + c.rows, int64_t(0)) * c.out_height * c.out_width * c.images;
    constexpr int kWide = kBytes == 64 ? 4 : 2;  // AVX-512 has twice the registers
    share_out(tasks, multiplications, threads, [&](int64_t task) {
        int64_t row = task * block;
        if (c.shared && row + 4 <= c.rows) {
            if constexpr (kGradient)
                gradient_rows<T, 4>(c, row);
            else
                correlate_rows<T, 4, kWide>(c, row);
            return;
        }
        for (const int64_t end = std::min(row + block, c.rows); row < end; ++row) {
            if constexpr (kGradient)
                gradient_rows<T, 1>(c, row);
            else
                correlate_rows<T, 1, 8>(c, row);
        }
    });
}

// x [channels][height][width][images] into zeros, its first pixel at (top, left), the others `step` apart.
template <typename T>
void pad(const T *x, T *out, int64_t channels, int64_t height, int64_t width, int64_t images, int64_t out_height,
         int64_t out_width, int64_t top, int64_t left, int64_t step_height, int64_t step_width) {
    std::memset(out, 0, sizeof(T) * channels * out_height * out_width * images);
    for (int64_t ch = 0; ch < channels; ++ch)
        for (int64_t i = 0; i < height; ++i) {
            const int64_t row = top + i * step_height;
            if (row < 0 || row >= out_height) continue;
            T *to = out + (ch * out_height + row) * out_width * images;
            const T *from = x + (ch * height + i) * width * images;
            if (step_width == 1 && left >= 0 && left + width <= out_width) {
                std::memcpy(to + left * images, from, sizeof(T) * width * images);
                continue;
            }
            for (int64_t j = 0; j < width; ++j) {
                const int64_t column = left + j * step_width;
                if (column >= 0 && column < out_width)
                    std::memcpy(to + column * images, from + j * images, sizeof(T) * images);
            }
        }
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

// Sums over a run of memory: by vector within a piece, in double between pieces.
constexpr int64_t kSumPiece = 4096;

template <typename T>
double sum_of(const T *__restrict x, int64_t n) {
    double total = 0;
    for (int64_t start = 0; start < n; start += kSumPiece) {
        const int64_t length = std::min(kSumPiece, n - start);
        const T *__restrict at = x + start;
        T sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < length; ++i) sum += at[i];
        total += sum;
    }
    return total;
}

// The sum of (a - shift) * (b - other).
template <typename T>
double sum_of_products(const T *__restrict a, T shift, const T *__restrict b, T other, int64_t n) {
    double total = 0;
    for (int64_t start = 0; start < n; start += kSumPiece) {
        const int64_t length = std::min(kSumPiece, n - start);
        const T *__restrict one = a + start, *__restrict two = b + start;
        T sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < length; ++i) sum += (one[i] - shift) * (two[i] - other);
        total += sum;
    }
    return total;
}

// y = (x - mean) / sqrt(variance + eps) * scale + shift by channel, with the channel's own mean and variance.
template <typename T>
void normalize(const T *x, const T *scale, const T *shift, T *y, T *means, T *variances, int64_t channels, int64_t n,
               double eps, int64_t threads) {
    share_out(channels, channels * n, threads, [&](int64_t ch) {
        const T *__restrict from = x + ch * n;
        T *__restrict to = y + ch * n;
        const T mean = T(sum_of(from, n) / n);
        const double variance = sum_of_products(from, mean, from, mean, n) / n;
        means[ch] = mean, variances[ch] = T(variance);
        const T factor = T((scale ? scale[ch] : 1) / std::sqrt(variance + eps)), add = shift ? shift[ch] : 0;
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) to[i] = (from[i] - mean) * factor + add;
    });
}

template <typename T>
void normalize_gradient(const T *x, const T *dy, const T *scale, const T *means, const T *variances, T *dx, T *dscale,
                        T *dshift, int64_t channels, int64_t n, double eps, int64_t threads) {
    share_out(channels, channels * n, threads, [&](int64_t ch) {
        const T *__restrict seen = x + ch * n, *__restrict given = dy + ch * n;
        T *__restrict to = dx + ch * n;
        const T mean = means[ch];
        const double inverse = 1 / std::sqrt(variances[ch] + eps);
        const double sum = sum_of(given, n), along_x = sum_of_products(given, T(0), seen, mean, n);
        dshift[ch] = T(sum), dscale[ch] = T(along_x * inverse);
        const double factor = (scale ? scale[ch] : 1) * inverse;
        const T f = T(factor), common = T(sum / n), along = T(along_x * inverse * inverse / n);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) to[i] = f * (given[i] - common - along * (seen[i] - mean));
    });
}

// Entries by row and level, in their order where both are the same: counted, not compared.
void rank(const int64_t *row, const uint8_t *level, int64_t entries, int64_t rows, int64_t levels, int64_t *order,
          int32_t *up_to, int64_t *first) {
    std::vector<int64_t> next(rows * levels + 1, 0);
    for (int64_t e = 0; e < entries; ++e) ++next[row[e] * levels + level[e] + 1];
    std::partial_sum(next.begin(), next.end(), next.begin());
    for (int64_t r = 0; r < rows; ++r) {
        first[r] = next[r * levels];
        for (int64_t l = 0; l < levels; ++l) up_to[l * rows + r] = int32_t(next[r * levels + l + 1] - first[r]);
    }
    for (int64_t e = 0; e < entries; ++e) order[next[row[e] * levels + level[e]]++] = e;
}

}  // namespace

#define FOR_TYPE(T, name)                                                                                            \
    void lean_correlate_##name(const Correlation *c, int64_t threads) { rows_in_blocks<T, false>(*c, threads); }      \
    void lean_gradient_##name(const Correlation *c, int64_t threads) { rows_in_blocks<T, true>(*c, threads); }        \
    void lean_pad_##name(const T *x, T *out, int64_t c, int64_t h, int64_t w, int64_t n, int64_t out_h,              \
                         int64_t out_w, int64_t top, int64_t left, int64_t step_h, int64_t step_w) {                 \
        pad(x, out, c, h, w, n, out_h, out_w, top, left, step_h, step_w);                                             \
    }                                                                                                                \
    void lean_pool_##name(const Pooling *p, const T *x, T *y, int32_t *which, int64_t threads) {                      \
        pool(*p, x, y, which, threads);                                                                               \
    }                                                                                                                \
    void lean_normalize_##name(const T *x, const T *scale, const T *shift, T *y, T *mean, T *variance, int64_t c,     \
                               int64_t n, double eps, int64_t threads) {                                             \
        normalize(x, scale, shift, y, mean, variance, c, n, eps, threads);                                            \
    }                                                                                                                \
    void lean_normalize_gradient_##name(const T *x, const T *dy, const T *scale, const T *mean, const T *variance,    \
                                        T *dx, T *dscale, T *dshift, int64_t c, int64_t n, double eps,                \
                                        int64_t threads) {                                                            \
        normalize_gradient(x, dy, scale, mean, variance, dx, dscale, dshift, c, n, eps, threads);                     \
    }                                                                                                                \
    void lean_pool_gradient_##name(const Pooling *p, const T *dy, const int32_t *which, T *dx, int64_t threads) {     \
        pool_gradient(*p, dy, which, dx, threads);                                                                    \
    }

extern "C" {
void lean_rank(const int64_t *row, const uint8_t *level, int64_t entries, int64_t rows, int64_t levels, int64_t *order,
               int32_t *up_to, int64_t *first) {
    rank(row, level, entries, rows, levels, order, up_to, first);
}
FOR_TYPE(float, f32)
FOR_TYPE(double, f64)
}
