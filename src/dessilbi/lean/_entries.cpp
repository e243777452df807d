// Convolutions and linear layers of which only some weights are there, and their gradients.
//
// A weight is an entry: its value, and how many pixels the input that it reads lies from that of the first entry, in
// an image with its padding around it. A weight that is zero is simply not there.

#include "_vectors.h"

#include <numeric>

extern "C" {

// Mirrored by _library.CorrelationCall; every field has 8 bytes.
struct Correlation {
    const void *x;         // [..][height][width][images], padded
    void *y;               // [rows][out_height][out_width][images]: written forward, read for the gradient
    void *values;          // one an entry: read forward, written for the gradient
    const int64_t *first;  // by row, its first entry; and the end of the last row
    const int32_t *count;  // by row, how many of its entries there are; the others are taken for zero
    const int32_t *pixels; // by entry
    void *bias;            // null or one a row: read forward, written for the gradient
    int64_t rows, width, images;
    int64_t out_height, out_width, step_height, step_width;
};

// x [channels][height][width][images] into zeros, its first pixel at (top, left), the others `down` and `right` apart.
struct Padding {
    const void *x;
    void *y;
    int64_t channels, height, width, images, out_height, out_width, top, left, down, right;
};

// y[i] = x[index[i]]
struct Gathering {
    const void *x;
    void *y;
    const int64_t *index;
    int64_t count;
};

}  // extern "C"

namespace {

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

// A piece of a row of y, kVectors vectors, in registers.
template <typename T, int kVectors>
void sum_vectors(const T *x, T *y, const T *values, const int32_t *pixels, int64_t entries, int64_t images, T start) {
    V<T> sum[kVectors];
    for (int v = 0; v < kVectors; ++v) sum[v] = V<T>{} + start;
    for (int64_t e = 0; e < entries; ++e) {
        const T *at = x + pixels[e] * images;
        for (int v = 0; v < kVectors; ++v) sum[v] += Vector<T>::load(at + v * Vector<T>::lanes) * values[e];
    }
    for (int v = 0; v < kVectors; ++v) Vector<T>::store(y + v * Vector<T>::lanes, sum[v]);
}

template <typename T>
void correlate_row(const Correlation &c, int64_t row) {
    constexpr int64_t lanes = Vector<T>::lanes, kVectors = 8;
    const Runs runs(c);
    const int32_t *pixels = c.pixels + c.first[row];
    const T *values = static_cast<const T *>(c.values) + c.first[row];
    const int64_t entries = c.count[row];
    const T start = c.bias ? static_cast<const T *>(c.bias)[row] : T(0);
    for (int64_t line = 0; line < runs.lines; ++line)
        for (int64_t piece = 0; piece < runs.pieces; ++piece) {
            const T *x = static_cast<const T *>(c.x) + line * runs.line_step + piece * runs.piece_step;
            T *y = static_cast<T *>(c.y) + (row * runs.lines + line) * runs.out_step + piece * c.images;
            int64_t i = 0;
            for (; i + kVectors * lanes <= runs.length; i += kVectors * lanes)
                sum_vectors<T, kVectors>(x + i, y + i, values, pixels, entries, c.images, start);
            for (; i + lanes <= runs.length; i += lanes)
                sum_vectors<T, 1>(x + i, y + i, values, pixels, entries, c.images, start);
            for (; i < runs.length; ++i) {
                T sum = start;
                for (int64_t e = 0; e < entries; ++e) sum += values[e] * x[i + pixels[e] * c.images];
                y[i] = sum;
            }
        }
}

// Adds y times what kEntries entries read over a piece of memory.
template <typename T, int kEntries>
void add_products(const T *x, const T *y, const int32_t *pixels, int64_t images, int64_t length, T *sums, T *rest) {
    constexpr int64_t lanes = Vector<T>::lanes;
    V<T> sum[kEntries];
    const T *read[kEntries];
    for (int e = 0; e < kEntries; ++e) sum[e] = Vector<T>::load(sums + e * lanes), read[e] = x + pixels[e] * images;
    int64_t i = 0;
    for (; i + lanes <= length; i += lanes) {
        const V<T> given = Vector<T>::load(y + i);
        for (int e = 0; e < kEntries; ++e) sum[e] += Vector<T>::load(read[e] + i) * given;
    }
    for (int e = 0; e < kEntries; ++e) {
        Vector<T>::store(sums + e * lanes, sum[e]);
        for (int64_t k = i; k < length; ++k) rest[e] += read[e][k] * y[k];
    }
}

template <typename T>
void gradient_row(const Correlation &c, int64_t row) {
    constexpr int64_t lanes = Vector<T>::lanes, kEntries = 4, kPiece = 512;  // a piece fits into the first cache
    const Runs runs(c);
    const int32_t *pixels = c.pixels + c.first[row];
    const int64_t entries = c.count[row];
    std::vector<T> sums(entries * lanes, T(0)), rest(entries, T(0));
    for (int64_t line = 0; line < runs.lines; ++line)
        for (int64_t piece = 0; piece < runs.pieces; ++piece)
            for (int64_t start = 0; start < runs.length; start += kPiece) {
                const T *x = static_cast<const T *>(c.x) + line * runs.line_step + piece * runs.piece_step + start;
                const T *y = static_cast<const T *>(c.y) + (row * runs.lines + line) * runs.out_step +
                             piece * c.images + start;
                const int64_t length = std::min(kPiece, runs.length - start);
                int64_t e = 0;
                for (; e + kEntries <= entries; e += kEntries)
                    add_products<T, kEntries>(x, y, pixels + e, c.images, length, &sums[e * lanes], &rest[e]);
                for (; e < entries; ++e)
                    add_products<T, 1>(x, y, pixels + e, c.images, length, &sums[e * lanes], &rest[e]);
            }
    for (int64_t e = 0; e < entries; ++e) {
        T sum = rest[e];
        for (int64_t k = 0; k < lanes; ++k) sum += sums[e * lanes + k];
        static_cast<T *>(c.values)[c.first[row] + e] = sum;
    }
    T *values = static_cast<T *>(c.values);
    std::fill(values + c.first[row] + entries, values + c.first[row + 1], T(0));
    if (c.bias) {
        const int64_t area = runs.lines * runs.out_step;
        const T *__restrict y = static_cast<const T *>(c.y) + row * area;
        T sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < area; ++i) sum += y[i];
        static_cast<T *>(c.bias)[row] = sum;
    }
}

template <typename T, bool kGradient>
void for_rows(const Correlation &c, int64_t threads) {
    const int64_t multiplications =
        std::accumulate(c.count, c.count + c.rows, int64_t(0)) * c.out_height * c.out_width * c.images;
    share_out(c.rows, multiplications, threads, [&](int64_t row) {
        if constexpr (kGradient)
            gradient_row<T>(c, row);
        else
            correlate_row<T>(c, row);
    });
}

template <typename T>
void pad(const Padding &p) {
    T *out = static_cast<T *>(p.y);
    std::memset(out, 0, sizeof(T) * p.channels * p.out_height * p.out_width * p.images);
    for (int64_t ch = 0; ch < p.channels; ++ch)
        for (int64_t i = 0; i < p.height; ++i) {
            const int64_t row = p.top + i * p.down;
            if (row < 0 || row >= p.out_height) continue;
            T *to = out + (ch * p.out_height + row) * p.out_width * p.images;
            const T *from = static_cast<const T *>(p.x) + (ch * p.height + i) * p.width * p.images;
            if (p.right == 1 && p.left >= 0 && p.left + p.width <= p.out_width) {
                std::memcpy(to + p.left * p.images, from, sizeof(T) * p.width * p.images);
                continue;
            }
            for (int64_t j = 0; j < p.width; ++j) {
                const int64_t column = p.left + j * p.right;
                if (column >= 0 && column < p.out_width)
                    std::memcpy(to + column * p.images, from + j * p.images, sizeof(T) * p.images);
            }
        }
}

template <typename T>
void gather(const Gathering &g) {
    for (int64_t i = 0; i < g.count; ++i) static_cast<T *>(g.y)[i] = static_cast<const T *>(g.x)[g.index[i]];
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
    first[rows] = entries;
    for (int64_t e = 0; e < entries; ++e) order[next[row[e] * levels + level[e]]++] = e;
}

}  // namespace

#define FOR_TYPE(T, name)                                                                                            \
    void lean_correlate_##name(const Correlation *c, int64_t threads) { for_rows<T, false>(*c, threads); }            \
    void lean_gradient_##name(const Correlation *c, int64_t threads) { for_rows<T, true>(*c, threads); }              \
    void lean_pad_##name(const Padding *p, int64_t) { pad<T>(*p); }                                                   \
    void lean_gather_##name(const Gathering *g, int64_t) { gather<T>(*g); }

extern "C" {
void lean_rank(const int64_t *row, const uint8_t *level, int64_t entries, int64_t rows, int64_t levels, int64_t *order,
               int32_t *up_to, int64_t *first) {
    rank(row, level, entries, rows, levels, order, up_to, first);
}
FOR_TYPE(float, f32)
FOR_TYPE(double, f64)
}
