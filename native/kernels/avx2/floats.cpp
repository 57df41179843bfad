// Float codecs by AVX2. Column k of a tile is two vectors of eight rows; accumulator k mod 4 takes it.
#include "kernels/avx2/avx2.h"
#include "kernels/avx2/simd.h"
#include "kernels/driver.h"

namespace freetoken::avx2 {
namespace {

template <Codec C>
__m256 load_half_column(const uint8_t* p) {
    if constexpr (C == Codec::f32) {
        return _mm256_castsi256_ps(load256(p));
    } else if constexpr (C == Codec::f16) {
        return _mm256_cvtph_ps(load128(p));
    } else {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16));
    }
}

template <Codec C>
struct FloatKernel {
    static constexpr Codec kCodec = C;
    static constexpr Fetch kFetch = Fetch::far;
    static constexpr int kGroup = 6;
    static constexpr int kColumnBytes = codec_info(C).code_bytes * kTileRows;

    // Adds columns [begin, end) of the tile to accumulators first .. first + Width of every token.
    template <int T, int Width, Fetch F>
    [[gnu::always_inline]] static inline void accumulate(const TileJob& job, int begin, int end, int first,
                                                         __m256 (&sums)[T][kFloatColumns][2]) {
        __m256 acc[T][Width][2];
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t)
#pragma GCC unroll 4
            for (int s = 0; s < Width; ++s) {
                acc[t][s][0] = sums[t][first + s][0];
                acc[t][s][1] = sums[t][first + s][1];
            }
        const uint8_t* p = job.tile + static_cast<size_t>(begin) * kColumnBytes;
        for (int k = begin; k < end; k += kFloatColumns, p += kFloatColumns * kColumnBytes) {
            fetch_ahead<F>(p, kFloatColumns * kColumnBytes);
#pragma GCC unroll 4
            for (int s = 0; s < Width; ++s) {
                const uint8_t* column = p + (first + s) * kColumnBytes;
                const __m256 upper = load_half_column<C>(column);
                const __m256 lower = load_half_column<C>(column + kColumnBytes / 2);
#pragma GCC unroll 8
                for (int t = 0; t < T; ++t) {
                    const __m256 x = broadcast_float(job.x[t] + static_cast<size_t>(k + first + s) * sizeof(float));
                    acc[t][s][0] = _mm256_fmadd_ps(upper, x, acc[t][s][0]);
                    acc[t][s][1] = _mm256_fmadd_ps(lower, x, acc[t][s][1]);
                }
            }
        }
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t)
#pragma GCC unroll 4
            for (int s = 0; s < Width; ++s) {
                sums[t][first + s][0] = acc[t][s][0];
                sums[t][first + s][1] = acc[t][s][1];
            }
    }

    // Sixteen registers do not hold four accumulators of several tokens. One token takes all four at once and reads
    // the tile as a stream; a group takes them in turn, strip by strip, so that later passes find the strip in cache.
    template <int T, Fetch F>
    static void run_tile(const TileJob& job) {
        constexpr int kWidth = T == 1 ? 4 : T <= 3 ? 2 : 1;
        const int cols = static_cast<int>(padded_cols(C, job.cols));
        const int strip = T == 1 ? cols : 64;
        __m256 sums[T][kFloatColumns][2] = {};
        for (int begin = 0; begin < cols; begin += strip) {
            const int end = cols - begin < strip ? cols : begin + strip;
            accumulate<T, kWidth, F>(job, begin, end, 0, sums);
            for (int s = kWidth; s < kFloatColumns; s += kWidth)
                accumulate<T, kWidth, Fetch::none>(job, begin, end, s, sums);
        }
        for (int t = 0; t < T; ++t) {
            const auto result = [&](int half) {
                return canonical(_mm256_add_ps(_mm256_add_ps(sums[t][0][half], sums[t][1][half]),
                                               _mm256_add_ps(sums[t][2][half], sums[t][3][half])));
            };
            store_rows(job.y + static_cast<size_t>(t) * job.ldy, job.rows, result(0), result(1));
        }
    }

    template <int T>
    static void run(const TileJob& job) {
        if (T > 1 && job.from_memory) return run_tile<T, kFetch>(job);
        run_tile<T, Fetch::none>(job);
    }
};

}  // namespace

void float_gemm(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y,
                size_t ldy) {
    gemm_by_codec<FloatKernel<Codec::f32>, FloatKernel<Codec::f16>, FloatKernel<Codec::bf16>>(m, tile_begin, tile_end,
                                                                                              x, tokens, y, ldy);
}

}  // namespace freetoken::avx2
