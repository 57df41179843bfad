// Scaled floats: e4m3 weights under a scale a block. A line of codes is four columns of sixteen rows; accumulator k mod 4
// takes column k, and a block's sum goes to the row's under the block's scale.
#include "kernels/avx512/avx512.h"
#include "kernels/avx512/formats.h"
#include "kernels/driver.h"

namespace freetoken::avx512 {
namespace {

// The codes of column s of a line are the upper bytes of these words.
__m256i column_words(const uint8_t* line, int s) {
    return load_half_line(line + 32 * (s % 2) - 1 + s / 2);
}

// Whether no code of a line is zero or subnormal.
bool all_normal(const uint8_t* line) {
    return _mm512_testn_epi8_mask(load_line(line), _mm512_set1_epi8(0x78)) == 0;
}

// The words' upper bytes as f32 if they are normal: with its exponent behind the bits 0111 an e4m3 is a bfloat16 of
// 2^-8 of its value. This takes three quarters of the time of the way by binary16, which is right for every code.
__m512 normal_e4m3(__m256i words) {
    const __m512i places = _mm512_setr_epi32(0 << 16, 1 << 16, 2 << 16, 3 << 16, 4 << 16, 5 << 16, 6 << 16, 7 << 16,
                                             8 << 16, 9 << 16, 10 << 16, 11 << 16, 12 << 16, 13 << 16, 14 << 16,
                                             15 << 16);
    const __m256i own_bits = _mm256_set1_epi16(static_cast<int16_t>(0x87F0));
    const __m256i exponent = _mm256_set1_epi16(0x3800);
    const __m256i bfloats =
        _mm256_ternarylogic_epi32(_mm256_srai_epi16(words, 4), own_bits, exponent, 0xEA);  // (shifted & own) | exponent
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xAAAAAAAAu, places, _mm512_castsi256_si512(bfloats)));
}

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

    template <int T, bool kNormal>
    [[gnu::always_inline]] static inline void multiply_line(const uint8_t* line, const uint8_t* const (&x)[T],
                                                            size_t offset, __m512 (&sums)[T][kFloatColumns]) {
#pragma GCC unroll 4
        for (int s = 0; s < kFloatColumns; ++s) {
            const __m256i words = column_words(line, s);
            const __m512 w = kNormal ? normal_e4m3(words) : upper_e4m3(words);
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t)
                sums[t][s] = _mm512_fmadd_ps(
                    w, broadcast_float(x[t] + offset + static_cast<size_t>(s) * sizeof(float)), sums[t][s]);
        }
    }

    // Adds `columns` columns under one scale.
    template <int T, Fetch F>
    [[gnu::always_inline]] static inline void multiply_block(const uint8_t* scales, const uint8_t* codes,
                                                             const uint8_t* const (&x)[T], int columns,
                                                             __m512 (&acc)[T]) {
        __m512 sums[T][kFloatColumns] = {};
        const size_t end = static_cast<size_t>(columns) * sizeof(float);
        for (size_t offset = 0; offset < end; offset += kStep, codes += kScaleLine) {
            fetch_ahead<F>(codes, kScaleLine);
            // Subnormals are rare, and decoding is a small part of the work for more tokens.
            if (T <= 2 && all_normal(codes)) {
                multiply_line<T, true>(codes, x, offset, sums);
            } else {
                multiply_line<T, false>(codes, x, offset, sums);
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
