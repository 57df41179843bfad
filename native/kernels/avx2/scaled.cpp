// Scaled floats: e4m3 weights under a scale a block. A line of codes is four columns of sixteen rows, which become f32
// by way of binary16; accumulator k mod 4 takes column k, and a block's sum goes to the row's under the block's scale.
#include "kernels/avx2/avx2.h"
#include "kernels/avx2/formats.h"
#include "kernels/driver.h"

namespace freetoken::avx2 {
namespace {

template <Codec C>
Rows block_scales(const uint8_t* p) {
    if constexpr (C == Codec::mxfp8) return powers_of_two(p);
    return {_mm256_castsi256_ps(load256(p)), _mm256_castsi256_ps(load256(p + 32))};
}

template <Codec C>
struct ScaledKernel {
    static constexpr Codec kCodec = C;
    static constexpr CodecInfo kInfo = codec_info(C);
    static constexpr int kGroup = 6;
    static constexpr size_t kStep = kFloatColumns * sizeof(float);

    // Sixteen registers do not hold four accumulators of sixteen rows for several tokens. One token takes all columns
    // and rows at once and reads the codes as a stream; a group takes a pair of columns of one side at a time.
    struct Strip {
        int pair;  // columns pair and pair + 2 of four
        int side;
    };

    template <int T, Fetch F>
    [[gnu::always_inline]] static inline void multiply_strip(Strip strip, const uint8_t* codes,
                                                             const uint8_t* const (&x)[T], int columns,
                                                             __m256 (&sums)[T][2]) {
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) sums[t][0] = sums[t][1] = _mm256_setzero_ps();
        const uint8_t* p = codes + 32 * strip.pair + 16 * strip.side;
        const size_t end = static_cast<size_t>(columns) * sizeof(float);
        for (size_t offset = static_cast<size_t>(strip.pair) * sizeof(float); offset < end;
             offset += kStep, p += kScaleLine) {
            fetch_ahead<F>(p, kScaleLine);
#pragma GCC unroll 2
            for (int byte = 0; byte < 2; ++byte) {
                const __m256 w = _mm256_cvtph_ps(e4m3_as_halves(load128(p), byte));
#pragma GCC unroll 8
                for (int t = 0; t < T; ++t)
                    sums[t][byte] = _mm256_fmadd_ps(
                        w, broadcast_float(x[t] + offset + static_cast<size_t>(2 * byte) * sizeof(float)),
                        sums[t][byte]);
            }
        }
    }

    template <int T, Fetch F>
    [[gnu::always_inline]] static inline void multiply_block(const Rows& scales, const uint8_t* codes,
                                                             const uint8_t* const (&x)[T], int columns,
                                                             __m256 (&acc)[T][2]) {
#pragma GCC unroll 2
        for (int side = 0; side < 2; ++side) {
            __m256 even[T][2], odd[T][2];
            side == 0 ? multiply_strip<T, F>({0, 0}, codes, x, columns, even)
                      : multiply_strip<T, Fetch::none>({0, 1}, codes, x, columns, even);
            multiply_strip<T, Fetch::none>({1, side}, codes, x, columns, odd);
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) {
                const __m256 sum =
                    _mm256_add_ps(_mm256_add_ps(even[t][0], odd[t][0]), _mm256_add_ps(even[t][1], odd[t][1]));
                acc[t][side] = _mm256_fmadd_ps(scales.side[side], sum, acc[t][side]);
            }
        }
    }

    [[gnu::always_inline]] static inline void multiply_block(const Rows& scales, const uint8_t* codes, const uint8_t* x,
                                                             int columns, __m256 (&acc)[2]) {
        __m256 sums[kFloatColumns][2] = {};
        const size_t end = static_cast<size_t>(columns) * sizeof(float);
        for (size_t offset = 0; offset < end; offset += kStep, codes += kScaleLine) {
#pragma GCC unroll 4
            for (int s = 0; s < kFloatColumns; ++s) {
                const Rows w = e4m3(load256(codes + 32 * (s % 2)), s / 2);
                const __m256 value = broadcast_float(x + offset + static_cast<size_t>(s) * sizeof(float));
                sums[s][0] = _mm256_fmadd_ps(w.side[0], value, sums[s][0]);
                sums[s][1] = _mm256_fmadd_ps(w.side[1], value, sums[s][1]);
            }
        }
#pragma GCC unroll 2
        for (int side = 0; side < 2; ++side) {
            const __m256 sum =
                _mm256_add_ps(_mm256_add_ps(sums[0][side], sums[1][side]), _mm256_add_ps(sums[2][side], sums[3][side]));
            acc[side] = _mm256_fmadd_ps(scales.side[side], sum, acc[side]);
        }
    }

    template <int T, Fetch F>
    static void run_tile(const TileJob& job) {
        __m256 acc[T][2] = {};
        walk_scaled_blocks<C, F>(job, [&](const uint8_t* scales, const uint8_t* codes, int k, int columns) {
            const uint8_t* x[T];
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) x[t] = job.x[t] + static_cast<size_t>(k) * sizeof(float);
            if constexpr (T == 1)
                multiply_block(block_scales<C>(scales), codes, x[0], columns, acc[0]);
            else
                multiply_block<T, F>(block_scales<C>(scales), codes, x, columns, acc);
        });
        for (int t = 0; t < T; ++t) {
            const auto result = [&](int side) {
                return canonical(_mm256_mul_ps(acc[t][side], _mm256_set1_ps(kInfo.post)));
            };
            store_rows(job.y + static_cast<size_t>(t) * job.ldy, job.rows, result(0), result(1));
        }
    }

    template <int T>
    static void run(const TileJob& job) {
        if (T > 1 && job.from_memory) return run_tile<T, Fetch::far>(job);
        run_tile<T, Fetch::none>(job);
    }
};

}  // namespace

void scaled_gemm(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y,
                 size_t ldy) {
    gemm_by_codec<ScaledKernel<Codec::fp8>, ScaledKernel<Codec::mxfp8>>(m, tile_begin, tile_end, x, tokens, y, ldy);
}

}  // namespace freetoken::avx2
