// Scaled floats: e4m3 weights under a scale a block. A line of codes is four columns of sixteen rows, which become f32
// by way of binary16; accumulator k mod 4 takes column k, and a block's sum goes to the row's under the block's scale.
#include "kernels/avx512/avx512.h"
#include "kernels/avx512/formats.h"
#include "kernels/driver.h"

namespace freetoken::avx512 {
namespace {

template <Codec C>
__m512 block_scales(const uint8_t* p) {
    if constexpr (C == Codec::mxfp8) return powers_of_two(p);
    return _mm512_loadu_ps(p);
}

template <Codec C>
struct ScaledKernel {
    static constexpr Codec kCodec = C;
    static constexpr CodecInfo kInfo = codec_info(C);
    static constexpr int kGroup = 6;  // 24 accumulators
    static constexpr size_t kStep = kFloatColumns * sizeof(float);

    // Adds columns [k, k + columns) under one scale.
    template <int T, Fetch F>
    [[gnu::always_inline]] static inline void multiply_block(const uint8_t* scales, const uint8_t* codes,
                                                             const uint8_t* const (&x)[T], int columns,
                                                             __m512 (&acc)[T]) {
        __m512 sums[T][kFloatColumns] = {};
        const size_t end = static_cast<size_t>(columns) * sizeof(float);
        for (size_t offset = 0; offset < end; offset += kStep, codes += kScaleLine) {
            fetch_ahead<F>(codes, kScaleLine);
#pragma GCC unroll 4
            for (int s = 0; s < kFloatColumns; ++s) {
                const __m512 w = e4m3(load_half_line(codes + 32 * (s % 2)), s / 2);
#pragma GCC unroll 8
                for (int t = 0; t < T; ++t)
                    sums[t][s] = _mm512_fmadd_ps(
                        w, broadcast_float(x[t] + offset + static_cast<size_t>(s) * sizeof(float)), sums[t][s]);
            }
        }
        const __m512 scale = block_scales<C>(scales);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const __m512 sum =
                _mm512_add_ps(_mm512_add_ps(sums[t][0], sums[t][1]), _mm512_add_ps(sums[t][2], sums[t][3]));
            acc[t] = _mm512_fmadd_ps(scale, sum, acc[t]);
        }
    }

    template <int T, Fetch F>
    static void run_tile(const TileJob& job) {
        __m512 acc[T] = {};
        walk_scaled_blocks<C, F>(job, [&](const uint8_t* scales, const uint8_t* codes, int k, int columns) {
            const uint8_t* x[T];
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) x[t] = job.x[t] + static_cast<size_t>(k) * sizeof(float);
            multiply_block<T, F>(scales, codes, x, columns, acc);
        });
        const __mmask16 mask = lane_mask(job.rows);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const __m512 result = _mm512_mul_ps(acc[t], _mm512_set1_ps(kInfo.post));
            _mm512_mask_storeu_ps(job.y + static_cast<size_t>(t) * job.ldy, mask, canonical(result));
        }
    }

    template <int T>
    static void run(const TileJob& job) {
        if (T > 2 && job.from_memory) return run_tile<T, Fetch::far>(job);
        run_tile<T, Fetch::none>(job);
    }
};

}  // namespace

void scaled_gemm(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y,
                 size_t ldy) {
    gemm_by_codec<ScaledKernel<Codec::fp8>, ScaledKernel<Codec::mxfp8>>(m, tile_begin, tile_end, x, tokens, y, ldy);
}

}  // namespace freetoken::avx512
