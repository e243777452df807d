// Convolutions with windows of 3 x 3 and stride 1 in 4 multiplications a pixel instead of 9 (Winograd's F(2x2, 3x3)):
//
//     y = A' [ (G g G') * (B' x B) ] A       for tiles of 2 x 2 pixels of y, which see 4 x 4 of x
//
// where * is by element, so that summing over the inputs makes it 16 products of matrices. Those of a few tiles at a
// time stay in the cache. The gradient of the weight (F(3x3, 2x2)) sums over tiles instead, with y in g's place:
//
//     g = C' [ sum (H y H') * (B' x B) ] C
//
// In whole numbers all of it would be exact; rounding is as small as in the plain sum.

#pragma once

#include "_vectors.h"

// The numbers of one element of a tile lie apart by these more than they are: else all 16 would fall into one set of
// the cache, whose sizes are powers of two as well.
template <typename T>
constexpr int64_t kApart = 3 * Vector<T>::lanes;

// Memory that a thread keeps: to clear it takes as long as a small layer.
template <typename T>
T *scratch(int64_t needed) {
    static thread_local std::vector<T> kept;
    if (int64_t(kept.size()) < needed + Vector<T>::lanes) kept.resize(needed + Vector<T>::lanes);
    T *first = kept.data();
    while (reinterpret_cast<uintptr_t>(first) % kBytes) ++first;
    return first;
}

// Tiles of 2 x 2 pixels of y, each for a vector of images, and what they see of x.
template <typename T>
struct Tiles {
    static constexpr int64_t lanes = Vector<T>::lanes;
    const T *x;
    const int64_t images, height, width, out_height, out_width, top, left;

    struct Place {
        int64_t row, column, image;  // the first pixel of y, and the first image
    };

    int64_t across() const { return (out_width + 1) / 2; }
    int64_t count() const { return (out_height + 1) / 2 * across() * (images / lanes); }
    Place place(int64_t tile) const {
        const int64_t vectors = images / lanes, at = tile / vectors;
        return {at / across() * 2, at % across() * 2, tile % vectors * lanes};
    }

    // B' x B of some channels, to [element][channel][tile].
    void see(int64_t first, int64_t last, const Place *places, int64_t count, T *seen, int64_t by_element,
             int64_t by_channel) const {
        for (int64_t channel = first; channel < last; ++channel) {
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
                            const int64_t below = row + i, beside = column + j;
                            const bool inside = below >= 0 && below < height && beside >= 0 && beside < width;
                            d[i][j] = inside ? Vector<T>::load(from + (i * width + j) * images) : V<T>{};
                        }
                }
                V<T> t[4][4];
                for (int j = 0; j < 4; ++j) {
                    t[0][j] = d[0][j] - d[2][j], t[1][j] = d[1][j] + d[2][j];
                    t[2][j] = d[2][j] - d[1][j], t[3][j] = d[1][j] - d[3][j];
                }
                T *to = seen + (channel - first) * by_channel + n * lanes;
                for (int i = 0; i < 4; ++i, to += 4 * by_element) {
                    Vector<T>::store(to, t[i][0] - t[i][2]);
                    Vector<T>::store(to + by_element, t[i][1] + t[i][2]);
                    Vector<T>::store(to + 2 * by_element, t[i][2] - t[i][1]);
                    Vector<T>::store(to + 3 * by_element, t[i][1] - t[i][3]);
                }
            }
        }
    }
};

template <typename T>
class Winograd {
    static constexpr int64_t lanes = Vector<T>::lanes;
    static constexpr int kRows = kBytes == 64 ? 6 : 3, kWide = 4;  // accumulators that fit into registers
    using Place = typename Tiles<T>::Place;
    const Tiles<T> tiles;
    T *y;
    const T *bias;
    const int64_t inputs, outputs, together;    // how many tiles are multiplied at a time
    const int64_t by_weight, by_seen, by_made;  // distances between elements of a tile
    std::vector<T> weight;                      // [element][input][output]

   public:
    // This is a gradient by the input, a convolution with the windows turned round, if `turned`; by_output and by_input
    // are distances in the weight.
    Winograd(const Tiles<T> &tiles, T *y, const T *g, const T *bias, int64_t inputs, int64_t outputs,
             int64_t by_output, int64_t by_input, bool turned)
        : tiles(tiles), y(y), bias(bias), inputs(inputs), outputs(outputs),
          together(inputs + outputs <= 64 ? 2 * kWide : kWide), by_weight(inputs * outputs + kApart<T>),
          by_seen(inputs * together * lanes + kApart<T>), by_made(outputs * together * lanes + kApart<T>) {
        transform_weight(g, by_output, by_input, turned);
    }

    static bool suits(int64_t inputs, int64_t outputs, int64_t images) {
        return std::min(inputs, outputs) >= 8 && images % lanes == 0;
    }

    void run(int64_t threads) const {
        const int64_t count = tiles.count(), tasks = threads > 1 ? std::min(8 * threads, count) : 1;
        share_out(tasks, 4 * count * lanes * inputs * outputs, threads, [&](int64_t task) {
            T *seen = scratch<T>(16 * (by_seen + by_made)), *made = seen + 16 * by_seen;
            const int64_t last = (task + 1) * count / tasks;
            for (int64_t first = task * count / tasks; first < last; first += together) {
                const int64_t some = std::min(together, last - first);
                Place places[2 * kWide];
                for (int64_t n = 0; n < some; ++n) places[n] = tiles.place(first + n);
                tiles.see(0, inputs, places, some, seen, by_seen, together * lanes);
                for (int64_t element = 0; element < 16; ++element)
                    multiply(weight.data() + element * by_weight, seen + element * by_seen, made + element * by_made,
                             some);
                transform_back(places, some, made);
            }
        });
    }

   private:
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
                for (int i = 0; i < 2 && at.row + i < tiles.out_height; ++i) {
                    const int64_t line = o * tiles.out_height + at.row + i;
                    T *to = y + (line * tiles.out_width + at.column) * tiles.images + at.image;
                    Vector<T>::store(to, s[i][0] + s[i][1] + s[i][2] + start);
                    if (at.column + 1 < tiles.out_width)
                        Vector<T>::store(to + tiles.images, s[i][1] - s[i][2] - s[i][3] + start);
                }
            }
        }
    }
};

// The gradient of the weight; with fewer outputs than a vector has numbers, plain sums are as fast.
template <typename T>
class WinogradGradient {
    static constexpr int64_t lanes = Vector<T>::lanes, kTogether = 4, kLong = kTogether * lanes;
    using Place = typename Tiles<T>::Place;
    const Tiles<T> tiles;
    const T *y;
    const int64_t inputs, outputs, padded;  // outputs, and as whole vectors

   public:
    WinogradGradient(const Tiles<T> &tiles, const T *y, int64_t inputs, int64_t outputs)
        : tiles(tiles), y(y), inputs(inputs), outputs(outputs), padded((outputs + lanes - 1) / lanes * lanes) {}

    static bool suits(int64_t inputs, int64_t outputs, int64_t images) {
        return inputs >= 8 && outputs >= lanes && images % lanes == 0;
    }

    // Of some inputs, to [output][input][9].
    void run(int64_t first, int64_t last, T *weight, int64_t by_output) const {
        const int64_t count = last - first;
        const int64_t by_seen = count * kLong + kApart<T>, by_given = padded * kLong + kApart<T>;
        const int64_t by_sum = count * padded + kApart<T>;
        T *seen = scratch<T>(16 * (by_seen + by_given + by_sum)), *given = seen + 16 * by_seen;
        T *sums = given + 16 * by_given;
        std::fill(sums, sums + 16 * by_sum, T(0));
        const int64_t end = tiles.count();
        for (int64_t tile = 0; tile < end; tile += kTogether) {
            const int64_t together = std::min(kTogether, end - tile);
            Place places[kTogether];
            for (int64_t n = 0; n < together; ++n) places[n] = tiles.place(tile + n);
            tiles.see(first, last, places, together, seen, by_seen, kLong);
            for (int64_t n = 0; n < together; ++n) give(places[n], given + n * lanes * padded, by_given);
            for (int64_t e = 0; e < 16; ++e)
                multiply(seen + e * by_seen, given + e * by_given, sums + e * by_sum, count, together * lanes);
        }
        for (int64_t i = 0; i < count; ++i)
            write(sums + i * padded, by_sum, weight + (first + i) * 9, by_output);
    }

   private:
    // H y H' of a tile, without the halves in H, to [element][image][output].
    void give(const Place &at, T *given, int64_t by_element) const {
        const int64_t area = tiles.out_height * tiles.out_width * tiles.images;
        const bool low = at.row + 1 < tiles.out_height, wide = at.column + 1 < tiles.out_width;
        const bool inside[4] = {true, wide, low, low && wide};
        for (int64_t o = 0; o < padded; o += lanes) {
            const int64_t rest = std::min(lanes, outputs - o);
            V<T> pixel[4][lanes];
            for (int p = 0; p < 4; ++p) {
                const T *from = y + o * area + at.image +
                                ((at.row + p / 2) * tiles.out_width + at.column + p % 2) * tiles.images;
                for (int64_t k = 0; k < lanes; ++k)
                    pixel[p][k] = inside[p] && k < rest ? Vector<T>::load(from + k * area) : V<T>{};
                transpose<T>(pixel[p]);
            }
            for (int64_t k = 0; k < lanes; ++k) {
                T *to = given + k * padded + o;
                const V<T> rows[4][2] = {{pixel[0][k], pixel[1][k]},
                                         {pixel[0][k] + pixel[2][k], pixel[1][k] + pixel[3][k]},
                                         {pixel[0][k] - pixel[2][k], pixel[1][k] - pixel[3][k]},
                                         {pixel[2][k], pixel[3][k]}};
                for (int i = 0; i < 4; ++i, to += 4 * by_element) {
                    Vector<T>::store(to, rows[i][0]);
                    Vector<T>::store(to + by_element, rows[i][0] + rows[i][1]);
                    Vector<T>::store(to + 2 * by_element, rows[i][0] - rows[i][1]);
                    Vector<T>::store(to + 3 * by_element, rows[i][1]);
                }
            }
        }
    }

    void multiply(const T *seen, const T *given, T *sums, int64_t count, int64_t length) const {
        int64_t o = 0;
        for (; o + 4 * lanes <= padded; o += 4 * lanes) multiply_outputs<4>(seen, given, sums, count, length, o);
        for (; o + 2 * lanes <= padded; o += 2 * lanes) multiply_outputs<2>(seen, given, sums, count, length, o);
        for (; o < padded; o += lanes) multiply_outputs<1>(seen, given, sums, count, length, o);
    }

    template <int kV>
    void multiply_outputs(const T *seen, const T *given, T *sums, int64_t count, int64_t length, int64_t o) const {
        constexpr int kE = kBytes == 64 ? (kV == 1 ? 16 : kV == 2 ? 8 : 6) : (kV == 1 ? 10 : kV == 2 ? 5 : 2);
        int64_t i = 0;
        for (; i + kE <= count; i += kE) multiply_block<kE, kV>(seen, given, sums, i, o, length);
        if constexpr (kE > 8)
            for (; i + 8 <= count; i += 8) multiply_block<8, kV>(seen, given, sums, i, o, length);
        if constexpr (kE > 4)
            for (; i + 4 <= count; i += 4) multiply_block<4, kV>(seen, given, sums, i, o, length);
        for (; i + 2 <= count; i += 2) multiply_block<2, kV>(seen, given, sums, i, o, length);
        for (; i < count; ++i) multiply_block<1, kV>(seen, given, sums, i, o, length);
    }

    template <int kE, int kV>
    void multiply_block(const T *seen, const T *given, T *sums, int64_t i, int64_t o, int64_t length) const {
        seen += i * kLong, given += o, sums += i * padded + o;
        V<T> sum[kE][kV];
        for (int e = 0; e < kE; ++e)
            for (int v = 0; v < kV; ++v) sum[e][v] = Vector<T>::load(sums + e * padded + v * lanes);
        for (int64_t k = 0; k < length; ++k) {
            V<T> read[kV];
            for (int v = 0; v < kV; ++v) read[v] = Vector<T>::load(given + k * padded + v * lanes), stay(read[v]);
            for (int e = 0; e < kE; ++e)
                for (int v = 0; v < kV; ++v) sum[e][v] += read[v] * seen[e * kLong + k];
        }
        for (int e = 0; e < kE; ++e)
            for (int v = 0; v < kV; ++v) Vector<T>::store(sums + e * padded + v * lanes, sum[e][v]);
    }

    // C' sums C of one input, with the halves of H.
    void write(const T *sums, int64_t by_element, T *to, int64_t by_output) const {
        for (int64_t o = 0; o < padded; o += lanes) {
            V<T> half[3][4];
            for (int j = 0; j < 4; ++j) {
                V<T> m[4];
                for (int i = 0; i < 4; ++i) m[i] = Vector<T>::load(sums + (4 * i + j) * by_element + o);
                half[0][j] = m[0] + (m[1] + m[2]) / 2, half[1][j] = (m[1] - m[2]) / 2;
                half[2][j] = (m[1] + m[2]) / 2 - m[3];
            }
            for (int i = 0; i < 3; ++i) {
                const V<T> *m = half[i];
                const V<T> found[3] = {m[0] + (m[1] + m[2]) / 2, (m[1] - m[2]) / 2, (m[1] + m[2]) / 2 - m[3]};
                for (int j = 0; j < 3; ++j)
                    for (int64_t k = 0; k < std::min(lanes, outputs - o); ++k)
                        to[(o + k) * by_output + 3 * i + j] = found[j][k];
            }
        }
    }
};
