// Convolutions with windows of 3 x 3 and stride 1 in 4 multiplications a pixel instead of 9 (Winograd's F(2x2, 3x3)):
//
//     y = A' [ (G g G') * (B' x B) ] A       for tiles of 2 x 2 pixels of y, which see 4 x 4 of x
//
// where * is by element, so that summing over the inputs makes it 16 products of matrices. Those of a few tiles at a
// time stay in the cache. In whole numbers all of it would be exact; rounding is as small as in the plain sum.

#pragma once

#include "_vectors.h"

// The numbers of one element of a tile lie apart by these more than they are: else all 16 would fall into one set of
// the cache, whose sizes are powers of two as well.
template <typename T>
constexpr int64_t kApart = 3 * Vector<T>::lanes;

template <typename T>
class Winograd {
    static constexpr int64_t lanes = Vector<T>::lanes;
    static constexpr int kRows = kBytes == 64 ? 6 : 3, kWide = 4;  // accumulators that fit into registers
    const T *x;
    T *y;
    const T *bias;
    const int64_t inputs, outputs, images, height, width, out_height, out_width, top, left;
    const int64_t vectors, across, columns, together;  // a column is a vector of images of a tile
    const int64_t by_weight, by_seen, by_made;         // distances between elements of a tile
    std::vector<T> weight;                             // [element][input][output]

   public:
    // The padding is that of a gradient by the input, which is a convolution with the windows turned round, if
    // `turned`; by_output and by_input are distances in the weight.
    Winograd(const T *x, T *y, const T *g, const T *bias, int64_t inputs, int64_t outputs, int64_t images,
             int64_t height, int64_t width, int64_t out_height, int64_t out_width, int64_t top, int64_t left,
             int64_t by_output, int64_t by_input, bool turned)
        : x(x), y(y), bias(bias), inputs(inputs), outputs(outputs), images(images), height(height), width(width),
          out_height(out_height), out_width(out_width), top(turned ? 2 - top : top), left(turned ? 2 - left : left),
          vectors(images / lanes), across((out_width + 1) / 2), columns((out_height + 1) / 2 * across * vectors),
          together(inputs + outputs <= 64 ? 2 * kWide : kWide), by_weight(inputs * outputs + kApart<T>),
          by_seen(inputs * together * lanes + kApart<T>), by_made(outputs * together * lanes + kApart<T>) {
        transform_weight(g, by_output, by_input, turned);
    }

    static bool suits(int64_t inputs, int64_t outputs, int64_t images) {
        return std::min(inputs, outputs) >= 8 && images % lanes == 0;
    }

    void run(int64_t threads) const {
        const int64_t tasks = threads > 1 ? std::min(8 * threads, columns) : 1;
        share_out(tasks, 4 * columns * lanes * inputs * outputs, threads, [&](int64_t task) {
            static thread_local std::vector<T> scratch;  // kept: to clear it takes as long as a small layer
            const size_t needed = 16 * (by_seen + by_made) + lanes;
            if (scratch.size() < needed) scratch.resize(needed);
            T *seen = scratch.data();
            while (reinterpret_cast<uintptr_t>(seen) % kBytes) ++seen;
            T *made = seen + 16 * by_seen;
            const int64_t last = (task + 1) * columns / tasks;
            for (int64_t first = task * columns / tasks; first < last; first += together) {
                const int64_t count = std::min(together, last - first);
                Place places[2 * kWide];
                for (int64_t n = 0; n < count; ++n) places[n] = place(first + n);
                transform_images(places, count, seen);
                for (int64_t element = 0; element < 16; ++element)
                    multiply(weight.data() + element * by_weight, seen + element * by_seen, made + element * by_made,
                             count);
                transform_back(places, count, made);
            }
        });
    }

   private:
    struct Place {
        int64_t row, column, image;  // the first pixel of a tile of y, and the first image
    };
    Place place(int64_t column) const {
        return {column / vectors / across * 2, column / vectors % across * 2, column % vectors * lanes};
    }

    // G g G'
    void transform_weight(const T *g, int64_t by_output, int64_t by_input, bool turned) {
        std::vector<T> plain(9 * by_weight);
        weight.resize(16 * by_weight);
        for (int64_t o = 0; o < outputs; ++o)
            for (int64_t i = 0; i < inputs; ++i) {
                const T *from = g + o * by_output + i * by_input;
                for (int k = 0; k < 9; ++k) plain[k * by_weight + i * outputs + o] = from[turned ? 8 - k : k];
            }
        const T *__restrict from = plain.data();
        T *__restrict to = weight.data();
        const int64_t apart = by_weight;
#pragma omp simd
        for (int64_t e = 0; e < inputs * outputs; ++e) {
            T half[4][3];
            for (int j = 0; j < 3; ++j) {
                const T a = from[j * apart + e], b = from[(3 + j) * apart + e], c = from[(6 + j) * apart + e];
                half[0][j] = a, half[1][j] = (a + b + c) / 2, half[2][j] = (a - b + c) / 2, half[3][j] = c;
            }
            for (int i = 0; i < 4; ++i) {
                const T a = half[i][0], b = half[i][1], c = half[i][2];
                to[4 * i * apart + e] = a, to[(4 * i + 1) * apart + e] = (a + b + c) / 2;
                to[(4 * i + 2) * apart + e] = (a - b + c) / 2, to[(4 * i + 3) * apart + e] = c;
            }
        }
    }

    // B' x B
    void transform_images(const Place *places, int64_t count, T *seen) const {
        for (int64_t channel = 0; channel < inputs; ++channel) {
            const T *plane = x + channel * height * width * images;
            for (int64_t n = 0; n < count; ++n) {
                const Place at = places[n];
                const int64_t row = at.row - top, column = at.column - left;
                const T *from = plane + (row * width + column) * images + at.image;
                V<T> d[4][4];
                if (row >= 0 && column >= 0 && row + 4 <= height && column + 4 <= width) {
                    for (int i = 0; i < 4; ++i)
                        for (int j = 0; j < 4; ++j) d[i][j] = Vector<T>::load(from + (i * width + j) * images);
                } else {
                    for (int i = 0; i < 4; ++i)
                        for (int j = 0; j < 4; ++j) {
                            const bool inside = row + i >= 0 && row + i < height && column + j >= 0 && column + j < width;
                            d[i][j] = inside ? Vector<T>::load(from + (i * width + j) * images) : V<T>{};
                        }
                }
                V<T> t[4][4];
                for (int j = 0; j < 4; ++j) {
                    t[0][j] = d[0][j] - d[2][j], t[1][j] = d[1][j] + d[2][j];
                    t[2][j] = d[2][j] - d[1][j], t[3][j] = d[1][j] - d[3][j];
                }
                T *to = seen + (channel * together + n) * lanes;
                for (int i = 0; i < 4; ++i, to += 4 * by_seen) {
                    Vector<T>::store(to, t[i][0] - t[i][2]);
                    Vector<T>::store(to + by_seen, t[i][1] + t[i][2]);
                    Vector<T>::store(to + 2 * by_seen, t[i][2] - t[i][1]);
                    Vector<T>::store(to + 3 * by_seen, t[i][1] - t[i][3]);
                }
            }
        }
    }

    void multiply(const T *u, const T *seen, T *made, int64_t count) const {
        int64_t n = 0;
        for (; n + kWide <= count; n += kWide) multiply_columns<kWide>(u, seen + n * lanes, made + n * lanes);
        for (; n < count; ++n) multiply_columns<1>(u, seen + n * lanes, made + n * lanes);
    }

    template <int kV>
    void multiply_columns(const T *u, const T *seen, T *made) const {
        int64_t o = 0;
        for (; o + kRows <= outputs; o += kRows) multiply_rows<kRows, kV>(u, seen, made, o);
        for (; kRows > 4 && o + 4 <= outputs; o += 4) multiply_rows<4, kV>(u, seen, made, o);
        for (; o + 2 <= outputs; o += 2) multiply_rows<2, kV>(u, seen, made, o);
        for (; o < outputs; ++o) multiply_rows<1, kV>(u, seen, made, o);
    }

    template <int kR, int kV>
    void multiply_rows(const T *u, const T *seen, T *made, int64_t o) const {
        V<T> sum[kR][kV];
        for (int r = 0; r < kR; ++r)
            for (int v = 0; v < kV; ++v) sum[r][v] = V<T>{};
        for (int64_t channel = 0; channel < inputs; ++channel) {
            V<T> given[kV];
            for (int v = 0; v < kV; ++v) given[v] = Vector<T>::load(seen + channel * together * lanes + v * lanes);
            for (int r = 0; r < kR; ++r) {
                const T factor = u[channel * outputs + o + r];
                for (int v = 0; v < kV; ++v) sum[r][v] += given[v] * factor;
            }
        }
        for (int r = 0; r < kR; ++r)
            for (int v = 0; v < kV; ++v)
                Vector<T>::store(made + (o + r) * together * lanes + v * lanes, sum[r][v]);
    }

    // A' made A
    void transform_back(const Place *places, int64_t count, const T *made) const {
        for (int64_t o = 0; o < outputs; ++o) {
            const T start = bias ? bias[o] : T(0);
            for (int64_t n = 0; n < count; ++n) {
                const Place at = places[n];
                const T *from = made + (o * together + n) * lanes;
                V<T> s[2][4];
                for (int j = 0; j < 4; ++j) {
                    V<T> m[4];
                    for (int i = 0; i < 4; ++i) m[i] = Vector<T>::load(from + (4 * i + j) * by_made);
                    s[0][j] = m[0] + m[1] + m[2], s[1][j] = m[1] - m[2] - m[3];
                }
                for (int i = 0; i < 2 && at.row + i < out_height; ++i) {
                    T *to = y + ((o * out_height + at.row + i) * out_width + at.column) * images + at.image;
                    Vector<T>::store(to, s[i][0] + s[i][1] + s[i][2] + start);
                    if (at.column + 1 < out_width) Vector<T>::store(to + images, s[i][1] - s[i][2] - s[i][3] + start);
                }
            }
        }
    }
};
