// Float codecs. Column k of a tile is one vector of sixteen rows; accumulator k mod 4 takes it.
#include "kernels/avx512/avx512.h"
#include "kernels/avx512/simd.h"
#include "kernels/driver.h"

namespace freetoken::avx512 {
namespace {

template <Codec C>
__m512 load_column(const uint8_t* p) {
    if constexpr (C == Codec::f32) return _mm512_loadu_ps(p);
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if constexpr (C == Codec::f16) return _mm512_cvtph_ps(words);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

template <Codec C>
struct FloatKernel {
    static constexpr Codec kCodec = C;
    static constexpr Fetch kFetch = C == Codec::f32 ? Fetch::near : Fetch::far;
    static constexpr int kGroup = 6;  // 24 accumulators
    static constexpr int kColumnBytes = codec_info(C).code_bytes * kTileRows;

    template <int T, Fetch F>
    static void run_tile(const TileJob& job) {
        const uint8_t* x[T];
        __m512 acc[T][kFloatColumns];
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            x[t] = job.x[t];
#pragma GCC unroll 4
            for (int s = 0; s < kFloatColumns; ++s) acc[t][s] = _mm512_setzero_ps();
        }
        const uint8_t* p = job.tile;
        const size_t end = static_cast<size_t>(padded_cols(C, job.cols)) * sizeof(float);
        for (size_t offset = 0; offset < end;
             offset += kFloatColumns * sizeof(float), p += kFloatColumns * kColumnBytes) {
            fetch_ahead<F>(p, kFloatColumns * kColumnBytes);
#pragma GCC unroll 4
            for (int s = 0; s < kFloatColumns; ++s) {
                const __m512 w = load_column<C>(p + s * kColumnBytes);
#pragma GCC unroll 8
                for (int t = 0; t < T; ++t)
                    acc[t][s] = _mm512_fmadd_ps(
                        w, broadcast_float(x[t] + offset + static_cast<size_t>(s) * sizeof(float)), acc[t][s]);
            }
        }
        const __mmask16 mask = lane_mask(job.rows);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const __m512 sum = _mm512_add_ps(_mm512_add_ps(acc[t][0], acc[t][1]), _mm512_add_ps(acc[t][2], acc[t][3]));
            _mm512_mask_storeu_ps(job.y + static_cast<size_t>(t) * job.ldy, mask, canonical(sum));
        }
    }

    template <int T>
    static void run(const TileJob& job) {
        if (T > (C == Codec::f32 ? 1 : 2) && job.from_memory) return run_tile<T, kFetch>(job);
        run_tile<T, Fetch::none>(job);
    }
};

}  // namespace

void float_gemm(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y,
                size_t ldy) {
    gemm_by_codec<FloatKernel<Codec::f32>, FloatKernel<Codec::f16>, FloatKernel<Codec::bf16>>(m, tile_begin, tile_end,
                                                                                              x, tokens, y, ldy);
}

}  // namespace freetoken::avx512
