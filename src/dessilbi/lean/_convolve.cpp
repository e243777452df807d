// Convolutions of all weights, and their gradients. Where padding would be read, nothing is: no sum has zeros in it.

#include "_vectors.h"
#include "_winograd.h"

extern "C" {

// Mirrored by _library.ConvolutionCall; every field has 8 bytes.
struct Convolution {
    const void *x;       // [inputs][height][width][images]
    void *y;             // [outputs][out_height][out_width][images]: written; read for the gradient of the weight
    void *weight;        // read; written, [outputs][inputs][window], for its gradient
    void *bias;          // null or one an output; written, if it is not null, for its gradient
    int64_t inputs, outputs, images;
    int64_t height, width, out_height, out_width;
    int64_t window_height, window_width, down, right, top, left;  // window, stride and padding
    int64_t by_output, by_input;                                  // distances in the weight
    int64_t turned;  // whether this is a gradient by the input: windows are turned round, strides go backwards
};

}  // extern "C"

namespace {

constexpr int kRows = kBytes == 64 ? 8 : 6, kWide = kBytes == 64 ? 3 : 2;  // accumulators that fit into registers

struct Source {
    int64_t tap, at;  // a row or column of the window, and the row or column of x that it sees
};

// What an output's row (or column) sees along one dimension.
std::vector<Source> sources(int64_t out, int64_t size, int64_t window, int64_t stride, int64_t padding, bool turned) {
    std::vector<Source> found;
    for (int64_t tap = 0; tap < window; ++tap) {
        int64_t at = turned ? out + padding - tap : out * stride + tap - padding;
        if (turned && at % stride != 0) continue;
        if (turned) at /= stride;
        if (at >= 0 && at < size) found.push_back({tap, at});
    }
    return found;
}

// Columns of the output, side by side, that see the same columns of the window, one further on each time.
struct Run {
    int64_t first, last;
    std::vector<Source> seen;  // by the first of them
};

std::vector<Run> runs_of(const Convolution &c) {
    std::vector<Run> runs;
    for (int64_t column = 0; column < c.out_width; ++column) {
        auto seen = sources(column, c.width, c.window_width, c.right, c.left, c.turned);
        if (!runs.empty() && runs.back().seen.size() == seen.size()) {
            Run &run = runs.back();
            bool on = true;
            for (size_t k = 0; k < seen.size(); ++k)
                on = on && seen[k].tap == run.seen[k].tap && seen[k].at == run.seen[k].at + column - run.first;
            if (on) {
                run.last = column + 1;
                continue;
            }
        }
        runs.push_back({column, column + 1, std::move(seen)});
    }
    return runs;
}

// The weights that a run of a line sees: where they are, and where what they see begins.
struct Entries {
    std::vector<int64_t> weight, x;

    void find(const Convolution &c, const std::vector<Source> &rows, const std::vector<Source> &columns, int64_t first,
              int64_t last) {
        weight.clear(), x.clear();
        for (int64_t channel = first; channel < last; ++channel)
            for (const Source &row : rows)
                for (const Source &column : columns) {
                    weight.push_back(channel * c.by_input + row.tap * c.window_width + column.tap);
                    x.push_back(((channel * c.height + row.at) * c.width + column.at) * c.images);
                }
    }
    int64_t size() const { return int64_t(x.size()); }
};

bool is_usual(const Convolution &c) {
    return c.window_height == 3 && c.window_width == 3 && c.down == 1 && c.right == 1;
}

template <typename T>
Tiles<T> tiles_of(const Convolution &c) {
    return {static_cast<const T *>(c.x), c.images, c.height, c.width, c.out_height, c.out_width,
            c.turned ? 2 - c.top : c.top, c.turned ? 2 - c.left : c.left};
}

// kR outputs of kV vectors each, in registers.
template <typename T, int kR, int kV>
void sum_block(const T *x, const T *weight, int64_t by_output, const Entries &entries, T *y, int64_t area,
               const T *bias) {
    V<T> sum[kR][kV];
    for (int r = 0; r < kR; ++r)
        for (int v = 0; v < kV; ++v) sum[r][v] = V<T>{} + (bias ? bias[r] : T(0));
    const int64_t *at = entries.x.data(), *which = entries.weight.data();
    for (int64_t e = 0, n = entries.size(); e < n; ++e) {
        V<T> seen[kV];
        for (int v = 0; v < kV; ++v) seen[v] = Vector<T>::load(x + at[e] + v * Vector<T>::lanes);
        const T *w = weight + which[e];
        for (int r = 0; r < kR; ++r) {
            const T factor = w[r * by_output];
            for (int v = 0; v < kV; ++v) sum[r][v] += seen[v] * factor;
        }
    }
    for (int r = 0; r < kR; ++r)
        for (int v = 0; v < kV; ++v) Vector<T>::store(y + r * area + v * Vector<T>::lanes, sum[r][v]);
}

template <typename T, int kR>
void sum_run(const T *x, const T *weight, int64_t by_output, const Entries &entries, T *y, int64_t area, const T *bias,
             int64_t length) {
    constexpr int64_t lanes = Vector<T>::lanes;
    int64_t i = 0;
    for (; i + kWide * lanes <= length; i += kWide * lanes)
        sum_block<T, kR, kWide>(x + i, weight, by_output, entries, y + i, area, bias);
    for (; kWide > 2 && i + 2 * lanes <= length; i += 2 * lanes)
        sum_block<T, kR, 2>(x + i, weight, by_output, entries, y + i, area, bias);
    for (; i + lanes <= length; i += lanes)
        sum_block<T, kR, 1>(x + i, weight, by_output, entries, y + i, area, bias);
    for (; i < length; ++i)
        for (int r = 0; r < kR; ++r) {
            T sum = bias ? bias[r] : T(0);
            for (int64_t e = 0; e < entries.size(); ++e)
                sum = multiply_add(x[i + entries.x[e]], weight[entries.weight[e] + r * by_output], sum);
            y[i + r * area] = sum;
        }
}

template <typename T>
void convolve(const Convolution &c, int64_t threads) {
    if (is_usual(c) && Winograd<T>::suits(c.inputs, c.outputs, c.images))
        return Winograd<T>(tiles_of<T>(c), static_cast<T *>(c.y), static_cast<const T *>(c.weight),
                           static_cast<const T *>(c.bias), c.inputs, c.outputs, c.by_output, c.by_input, c.turned)
            .run(threads);
    const auto runs = runs_of(c);
    const int64_t area = c.out_height * c.out_width * c.images;
    const int64_t work = c.inputs * c.outputs * c.window_height * c.window_width * area;
    share_out(c.out_height, work, threads, [&](int64_t line) {
        Entries entries;
        const auto rows = sources(line, c.height, c.window_height, c.down, c.top, c.turned);
        for (const Run &run : runs) {
            entries.find(c, rows, run.seen, 0, c.inputs);
            const int64_t length = (run.last - run.first) * c.images;
            int64_t r = 0;
            auto take = [&](auto count) {
                constexpr int kR = decltype(count)::value;
                for (; r + kR <= c.outputs; r += kR)
                    sum_run<T, kR>(static_cast<const T *>(c.x), static_cast<const T *>(c.weight) + r * c.by_output,
                                   c.by_output, entries,
                                   static_cast<T *>(c.y) + r * area + (line * c.out_width + run.first) * c.images, area,
                                   c.bias ? static_cast<const T *>(c.bias) + r : nullptr, length);
            };
            take(std::integral_constant<int, kRows>{});
            take(std::integral_constant<int, 4>{});
            take(std::integral_constant<int, 2>{});
            take(std::integral_constant<int, 1>{});
        }
    });
}

// The gradient of the weight: every sum runs over pixels and images. With many outputs vectors are of outputs, for
// which y is transposed; with few they are of images, and their lanes are added up in the end.

// Sums for some of the inputs, by outputs that are a multiple of the vectors.
template <typename T>
class ManyOutputs {
    static constexpr int64_t lanes = Vector<T>::lanes, kPiece = 128;
    const Convolution &c;
    const int64_t outputs, area;
    std::vector<T> sums, transposed;  // [weight][outputs], [place][outputs]

   public:
    ManyOutputs(const Convolution &c, int64_t weights)
        : c(c), outputs((c.outputs + lanes - 1) / lanes * lanes), area(c.out_height * c.out_width * c.images),
          sums(weights * outputs, T(0)), transposed(kPiece * outputs, T(0)) {}

    void add(const T *y, const Entries &entries, int64_t length) {
        for (int64_t start = 0; start < length; start += kPiece) {
            const int64_t piece = std::min(kPiece, length - start);
            const T *x = static_cast<const T *>(c.x) + start;
            transpose_outputs(y + start, piece);
            int64_t o = 0;
            for (; o + 4 * lanes <= outputs; o += 4 * lanes) add_outputs<4>(x, entries, o, piece);
            for (; o + 2 * lanes <= outputs; o += 2 * lanes) add_outputs<2>(x, entries, o, piece);
            for (; o < outputs; o += lanes) add_outputs<1>(x, entries, o, piece);
        }
    }

    // The sums of some weights to where they belong, in squares of which both sides are whole vectors.
    void write(int64_t first, int64_t last, T *to) {
        for (int64_t o = 0; o < c.outputs; o += lanes)
            for (int64_t e = first; e < last; e += lanes) {
                V<T> block[lanes];
                const int64_t high = std::min(lanes, c.outputs - o), wide = std::min(lanes, last - e);
                for (int64_t k = 0; k < lanes; ++k)
                    block[k] = k < wide ? Vector<T>::load(&sums[(e + k) * outputs + o]) : V<T>{};
                transpose<T>(block);
                for (int64_t k = 0; k < high; ++k)
                    std::memcpy(to + (o + k) * c.by_output + e, &block[k], wide * sizeof(T));
            }
    }

   private:
    void transpose_outputs(const T *y, int64_t length) {
        for (int64_t o = 0; o < c.outputs; o += lanes) {
            const int64_t rest = std::min(lanes, c.outputs - o);
            int64_t i = 0;
            for (; i + lanes <= length; i += lanes) {
                V<T> block[lanes];
                for (int64_t k = 0; k < lanes; ++k)
                    block[k] = k < rest ? Vector<T>::load(y + (o + k) * area + i) : V<T>{};
                transpose<T>(block);
                for (int64_t k = 0; k < lanes; ++k)
                    Vector<T>::store(transposed.data() + (i + k) * outputs + o, block[k]);
            }
            for (; i < length; ++i)
                for (int64_t k = 0; k < rest; ++k) transposed[i * outputs + o + k] = y[(o + k) * area + i];
        }
    }

    template <int kV>
    void add_outputs(const T *x, const Entries &entries, int64_t o, int64_t length) {
        constexpr int kE = kBytes == 64 ? (kV == 1 ? 12 : 24 / kV) : (kV == 1 ? 6 : 12 / kV);
        int64_t e = 0;
        for (; e + kE <= entries.size(); e += kE) add_block<kE, kV>(x, entries, e, o, length);
        for (; e + 3 <= entries.size(); e += 3) add_block<3, kV>(x, entries, e, o, length);
        for (; e < entries.size(); ++e) add_block<1, kV>(x, entries, e, o, length);
    }

    template <int kE, int kV>
    void add_block(const T *x, const Entries &entries, int64_t first, int64_t o, int64_t length) {
        const T *y = transposed.data() + o, *seen[kE];
        T *to[kE];
        V<T> sum[kE][kV];
        for (int e = 0; e < kE; ++e) {
            seen[e] = x + entries.x[first + e];
            to[e] = sums.data() + entries.weight[first + e] * outputs + o;
            for (int v = 0; v < kV; ++v) sum[e][v] = Vector<T>::load(to[e] + v * lanes);
        }
        for (int64_t i = 0; i < length; ++i) {
            V<T> given[kV];
            for (int v = 0; v < kV; ++v) given[v] = Vector<T>::load(y + i * outputs + v * lanes), stay(given[v]);
            for (int e = 0; e < kE; ++e)
                for (int v = 0; v < kV; ++v) sum[e][v] += given[v] * seen[e][i];
        }
        for (int e = 0; e < kE; ++e)
            for (int v = 0; v < kV; ++v) Vector<T>::store(to[e] + v * lanes, sum[e][v]);
    }
};

// The same by images: [weight][output][lane].
template <typename T>
class FewOutputs {
    static constexpr int64_t lanes = Vector<T>::lanes;
    const Convolution &c;
    const int64_t area;
    std::vector<T> sums;

   public:
    FewOutputs(const Convolution &c, int64_t weights)
        : c(c), area(c.out_height * c.out_width * c.images), sums(weights * c.outputs * lanes, T(0)) {}

    void add(const T *y, const Entries &entries, int64_t length) {
        constexpr int64_t kPiece = 1024;  // so that the outputs of a block stay in the first cache
        for (int64_t start = 0; start < length; start += kPiece) {
            const int64_t piece = std::min(kPiece, length - start);
            const T *x = static_cast<const T *>(c.x) + start;
            int64_t o = 0;
            if (kBytes == 64)
                for (; o + 8 <= c.outputs; o += 8) add_outputs<8>(x, y + start, entries, o, piece);
            for (; o + 4 <= c.outputs; o += 4) add_outputs<4>(x, y + start, entries, o, piece);
            for (; o + 2 <= c.outputs; o += 2) add_outputs<2>(x, y + start, entries, o, piece);
            for (; o < c.outputs; ++o) add_outputs<1>(x, y + start, entries, o, piece);
        }
    }

    void write(int64_t first, int64_t last, T *to) {
        for (int64_t e = first; e < last; ++e)
            for (int64_t o = 0; o < c.outputs; ++o) {
                const T *from = sums.data() + (e * c.outputs + o) * lanes;
                T sum = 0;
                for (int64_t k = 0; k < lanes; ++k) sum += from[k];
                to[o * c.by_output + e] = sum;
            }
    }

   private:
    template <int kO>
    void add_outputs(const T *x, const T *y, const Entries &entries, int64_t o, int64_t length) {
        constexpr int kE = kBytes == 64 && kO < 8 ? 6 : 3;  // 3: the columns of the usual window
        int64_t e = 0;
        for (; e + kE <= entries.size(); e += kE) add_block<kE, kO>(x, y, entries, e, o, length);
        for (; kE > 3 && e + 3 <= entries.size(); e += 3) add_block<3, kO>(x, y, entries, e, o, length);
        for (; e < entries.size(); ++e) add_block<1, kO>(x, y, entries, e, o, length);
    }

    template <int kE, int kO>
    void add_block(const T *x, const T *y, const Entries &entries, int64_t first, int64_t o, int64_t length) {
        const T *seen[kE];
        T *to[kE];
        V<T> sum[kE][kO];
        for (int e = 0; e < kE; ++e) {
            seen[e] = x + entries.x[first + e];
            to[e] = sums.data() + (entries.weight[first + e] * c.outputs + o) * lanes;
            for (int k = 0; k < kO; ++k) sum[e][k] = Vector<T>::load(to[e] + k * lanes);
        }
        int64_t i = 0;
        for (; i + lanes <= length; i += lanes) {
            V<T> read[kE];
            for (int e = 0; e < kE; ++e) read[e] = Vector<T>::load(seen[e] + i), stay(read[e]);
            for (int k = 0; k < kO; ++k) {
                V<T> given = Vector<T>::load(y + (o + k) * area + i);
                stay(given);
                for (int e = 0; e < kE; ++e) sum[e][k] += given * read[e];
            }
        }
        for (int e = 0; e < kE; ++e)
            for (int k = 0; k < kO; ++k) {
                Vector<T>::store(to[e] + k * lanes, sum[e][k]);
                for (int64_t rest = i; rest < length; ++rest)
                    to[e][k * lanes] = multiply_add(y[(o + k) * area + rest], seen[e][rest], to[e][k * lanes]);
            }
    }
};

// Of images of one pixel, as a linear layer has them: vectors are of inputs, for which x is transposed, so that sums can
// go from the registers to where they belong.
template <typename T>
class OnePixel {
    static constexpr int64_t lanes = Vector<T>::lanes, kPiece = 256;  // images of a sum between two visits to memory
    static constexpr int kRows = kBytes == 64 ? 6 : 5, kWide = kBytes == 64 ? 4 : 2;
    static constexpr int64_t kBlock = kWide * lanes;
    const Convolution &c;
    std::vector<T> transposed;  // [image][input]

   public:
    explicit OnePixel(const Convolution &c) : c(c), transposed(kPiece * kBlock, T(0)) {}

    static bool suits(const Convolution &c) {
        return c.height * c.width * c.window_height * c.window_width * c.out_height * c.out_width == 1;
    }

    void run(int64_t first, int64_t last) {
        int64_t i = first;
        for (; i + kBlock <= last; i += kBlock) add_inputs<kWide>(i, kBlock);
        for (; i < last; i += lanes) add_inputs<1>(i, std::min(lanes, last - i));
    }

   private:
    template <int kV>
    void add_inputs(int64_t i, int64_t inputs) {
        for (int64_t start = 0; start < c.images; start += kPiece) {
            const int64_t images = std::min(kPiece, c.images - start);
            transpose_inputs(i, inputs, start, images);
            int64_t o = 0;
            for (; o + kRows <= c.outputs; o += kRows) add_block<kRows, kV>(o, i, inputs, start, images);
            for (; o + 2 <= c.outputs; o += 2) add_block<2, kV>(o, i, inputs, start, images);
            for (; o < c.outputs; ++o) add_block<1, kV>(o, i, inputs, start, images);
        }
    }

    void transpose_inputs(int64_t first, int64_t inputs, int64_t start, int64_t images) {
        const T *x = static_cast<const T *>(c.x) + first * c.images + start;
        for (int64_t i = 0; i < inputs; i += lanes) {
            int64_t n = 0;
            for (; n + lanes <= images; n += lanes) {
                V<T> block[lanes];
                for (int64_t k = 0; k < lanes; ++k)
                    block[k] = i + k < inputs ? Vector<T>::load(x + (i + k) * c.images + n) : V<T>{};
                transpose<T>(block);
                for (int64_t k = 0; k < lanes; ++k) Vector<T>::store(&transposed[(n + k) * kBlock + i], block[k]);
            }
            for (; n < images; ++n)
                for (int64_t k = i; k < std::min(i + lanes, inputs); ++k) transposed[n * kBlock + k] = x[k * c.images + n];
        }
    }

    template <int kR, int kV>
    void add_block(int64_t o, int64_t i, int64_t inputs, int64_t start, int64_t images) {
        const T *y = static_cast<const T *>(c.y) + o * c.images + start;
        T *to = static_cast<T *>(c.weight) + o * c.by_output + i;
        const int64_t last = inputs - (kV - 1) * lanes;  // of the last vector only so many numbers belong to weights
        V<T> sum[kR][kV];
        for (int r = 0; r < kR; ++r)
            for (int v = 0; v < kV; ++v) {
                sum[r][v] = V<T>{};
                const int64_t count = v + 1 < kV ? lanes : last;
                if (start > 0) std::memcpy(&sum[r][v], to + r * c.by_output + v * lanes, count * sizeof(T));
            }
        for (int64_t n = 0; n < images; ++n) {
            V<T> seen[kV];
            for (int v = 0; v < kV; ++v) seen[v] = Vector<T>::load(&transposed[n * kBlock + v * lanes]), stay(seen[v]);
            for (int r = 0; r < kR; ++r)
                for (int v = 0; v < kV; ++v) sum[r][v] += seen[v] * y[r * c.images + n];
        }
        for (int r = 0; r < kR; ++r)
            for (int v = 0; v < kV; ++v)
                std::memcpy(to + r * c.by_output + v * lanes, &sum[r][v], (v + 1 < kV ? lanes : last) * sizeof(T));
    }
};

template <typename T, typename Sums>
void sum_inputs(const Convolution &c, int64_t first, int64_t last) {
    const auto runs = runs_of(c);
    const int64_t window = c.window_height * c.window_width;
    Sums sums(c, last * window);
    Entries entries;
    for (int64_t line = 0; line < c.out_height; ++line) {
        const auto rows = sources(line, c.height, c.window_height, c.down, c.top, false);
        for (const Run &run : runs) {
            entries.find(c, rows, run.seen, first, last);
            sums.add(static_cast<const T *>(c.y) + (line * c.out_width + run.first) * c.images, entries,
                     (run.last - run.first) * c.images);
        }
    }
    sums.write(first * window, last * window, static_cast<T *>(c.weight));
}

template <typename T>
void weight_gradient(const Convolution &c, int64_t threads) {
    const int64_t area = c.out_height * c.out_width * c.images;
    const int64_t work = c.inputs * c.outputs * c.window_height * c.window_width * area;
    // Every task has some of the inputs: how many changes no sum.
    const int64_t tasks = std::max<int64_t>(1, std::min(threads, c.inputs));
    share_out(tasks, work, threads, [&](int64_t task) {
        const int64_t first = task * c.inputs / tasks, last = (task + 1) * c.inputs / tasks;
        if (is_usual(c) && WinogradGradient<T>::suits(c.inputs, c.outputs, c.images))
            WinogradGradient<T>(tiles_of<T>(c), static_cast<const T *>(c.y), c.inputs, c.outputs)
                .run(first, last, static_cast<T *>(c.weight), c.by_output);
        else if (OnePixel<T>::suits(c))
            OnePixel<T>(c).run(first, last);
        else if (c.outputs > Vector<T>::lanes)
            sum_inputs<T, ManyOutputs<T>>(c, first, last);
        else
            sum_inputs<T, FewOutputs<T>>(c, first, last);
    });
    for (int64_t o = 0; c.bias && o < c.outputs; ++o) {
        const T *__restrict y = static_cast<const T *>(c.y) + o * area;
        T sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < area; ++i) sum += y[i];
        static_cast<T *>(c.bias)[o] = sum;
    }
}

}  // namespace

#define FOR_TYPE(T, name)                                                                          \
    void lean_convolve_##name(const Convolution *c, int64_t threads) { convolve<T>(*c, threads); } \
    void lean_weight_gradient_##name(const Convolution *c, int64_t threads) { weight_gradient<T>(*c, threads); }

extern "C" {
FOR_TYPE(float, f32)
FOR_TYPE(double, f64)
}
