// Integer codecs by AVX2. A lane owns a row; a tile is two halves of eight lanes.
#include "kernels/avx2/avx2.h"
#include "kernels/avx2/simd.h"
#include "kernels/driver.h"

namespace freetoken::avx2 {
namespace {

// Keeps the compiler from adding up in a tree, for which there are not registers enough.
__m256i in_order(__m256i v) {
    asm("" : "+x"(v));
    return v;
}

__m256i nibbles(__m256i packed, int part) {
    return _mm256_and_si256(part == 0 ? packed : _mm256_srli_epi16(packed, 4), _mm256_set1_epi8(15));
}

__m256 half_scales(const uint8_t* p) {
    return _mm256_cvtph_ps(load128(p));
}

// Four-bit codes by vpmaddubsw: unsigned codes times signed bytes of q, high and low apart, pairs added to 16 bits.
// `kLinesPerSum` lines can be added up before 16 bits overflow: a line adds at most 4 * largest code * 128.
template <class Format, int T>
[[gnu::always_inline]] inline void sum_nibbles(const uint8_t* codes, const PairedBlock* const (&x)[T],
                                               __m256i (&sum)[T][2]) {
    static_assert(Format::kLinesPerSum * 4 * Format::kLargestCode * 128 < 32768);
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) sum[t][0] = sum[t][1] = Format::correction(x[t]->block);
#pragma GCC unroll 2
    for (int begin = 0; begin < 4; begin += Format::kLinesPerSum) {
        __m256i high[T][2] = {}, low[T][2] = {};
#pragma GCC unroll 4
        for (int line = begin; line < begin + Format::kLinesPerSum; ++line) {
#pragma GCC unroll 2
            for (int part = 0; part < 2; ++part) {
                const __m256i upper = Format::codes(nibbles(load256(codes + 64 * line), part));
                const __m256i lower = Format::codes(nibbles(load256(codes + 64 * line + 32), part));
                const int k = 8 * line + 4 * part;
#pragma GCC unroll 4
                for (int t = 0; t < T; ++t) {
                    const __m256i hi = broadcast32(x[t]->block.hi + k);
                    const __m256i lo = broadcast32(x[t]->block.lo + k);
                    high[t][0] = in_order(_mm256_add_epi16(high[t][0], _mm256_maddubs_epi16(upper, hi)));
                    high[t][1] = in_order(_mm256_add_epi16(high[t][1], _mm256_maddubs_epi16(lower, hi)));
                    low[t][0] = in_order(_mm256_add_epi16(low[t][0], _mm256_maddubs_epi16(upper, lo)));
                    low[t][1] = in_order(_mm256_add_epi16(low[t][1], _mm256_maddubs_epi16(lower, lo)));
                }
            }
        }
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t)
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
                const __m256i h = _mm256_madd_epi16(high[t][half], _mm256_set1_epi16(256));
                const __m256i l = _mm256_madd_epi16(low[t][half], _mm256_set1_epi16(1));
                sum[t][half] = _mm256_add_epi32(sum[t][half], _mm256_add_epi32(h, l));
            }
    }
}

struct Q40 {
    static constexpr Codec kCodec = Codec::q4_0;
    static constexpr int kLargestCode = 15;
    static constexpr int kLinesPerSum = 4;
    static constexpr int kScaleBytes = 2;
    static __m256i codes(__m256i v) { return v; }
    static __m256i correction(const QuantBlock& x) { return broadcast32(&x.minus_8_sums); }
    static __m256 scale(const uint8_t* p) { return half_scales(p); }
    template <int T>
    static void sums(const uint8_t* codes, const PairedBlock* const (&x)[T], __m256i (&sum)[T][2]) {
        sum_nibbles<Q40>(codes, x, sum);
    }
};

struct Q41 {
    static constexpr Codec kCodec = Codec::q4_1;
    static constexpr int kLargestCode = 15;
    static constexpr int kLinesPerSum = 4;
    static constexpr int kScaleBytes = 4;
    static __m256i codes(__m256i v) { return v; }
    static __m256i correction(const QuantBlock&) { return _mm256_setzero_si256(); }
    // Eight pairs of scale and minimum as eight scales, then eight minima.
    static __m256i separated(const uint8_t* p) {
        const __m256i order =
            _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
        return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(load256(p), order), 0xD8);
    }
    static __m256 scale(const uint8_t* p) { return _mm256_cvtph_ps(_mm256_castsi256_si128(separated(p))); }
    static __m256 minimum(const uint8_t* p) { return _mm256_cvtph_ps(_mm256_extracti128_si256(separated(p), 1)); }
    template <int T>
    static void sums(const uint8_t* codes, const PairedBlock* const (&x)[T], __m256i (&sum)[T][2]) {
        sum_nibbles<Q41>(codes, x, sum);
    }
};

struct Mxfp4 {
    static constexpr Codec kCodec = Codec::mxfp4;
    static constexpr int kLargestCode = 24;
    static constexpr int kLinesPerSum = 2;
    static constexpr int kScaleBytes = 1;
    static __m256i codes(__m256i v) {
        const __m256i table =
            _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
        return _mm256_shuffle_epi8(table, v);
    }
    static __m256i correction(const QuantBlock& x) { return broadcast32(&x.minus_12_sums); }
    static __m256 scale(const uint8_t* p) {
        const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
        return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_slli_epi32(e, 23), _mm256_set1_epi32(0x00400000)));
    }
    template <int T>
    static void sums(const uint8_t* codes, const PairedBlock* const (&x)[T], __m256i (&sum)[T][2]) {
        sum_nibbles<Mxfp4>(codes, x, sum);
    }
};

struct Q80 {
    static constexpr Codec kCodec = Codec::q8_0;
    static constexpr int kScaleBytes = 2;
    static __m256 scale(const uint8_t* p) { return half_scales(p); }
    template <int T>
    [[gnu::always_inline]] static inline void sums(const uint8_t* codes, const PairedBlock* const (&x)[T],
                                                   __m256i (&sum)[T][2]) {
        const __m256i low_bytes = _mm256_set1_epi16(0xFF);
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t)
            sum[t][0] = sum[t][1] = _mm256_slli_epi32(broadcast32(&x[t]->block.minus_8_sums), 4);
#pragma GCC unroll 8
        for (int line = 0; line < 8; ++line) {
            const __m256i upper = load256(codes + 64 * line);
            const __m256i lower = load256(codes + 64 * line + 32);
            const __m256i even[2] = {_mm256_and_si256(upper, low_bytes), _mm256_and_si256(lower, low_bytes)};
            const __m256i odd[2] = {_mm256_srli_epi16(upper, 8), _mm256_srli_epi16(lower, 8)};
#pragma GCC unroll 4
            for (int t = 0; t < T; ++t) {
                const __m256i even_pairs = broadcast32(x[t]->pairs + 4 * line);
                const __m256i odd_pairs = broadcast32(x[t]->pairs + 4 * line + 2);
#pragma GCC unroll 2
                for (int half = 0; half < 2; ++half) {
                    sum[t][half] = in_order(_mm256_add_epi32(sum[t][half], _mm256_madd_epi16(even[half], even_pairs)));
                    sum[t][half] = in_order(_mm256_add_epi32(sum[t][half], _mm256_madd_epi16(odd[half], odd_pairs)));
                }
            }
        }
    }
};

template <class Format>
struct IntegerKernel {
    static constexpr int kGroup = 4;
    static constexpr Codec kCodec = Format::kCodec;
    static constexpr CodecInfo kInfo = codec_info(kCodec);

    template <int T>
    [[gnu::always_inline]] static inline void multiply_block(const uint8_t* scales, const uint8_t* codes,
                                                             const PairedBlock* const (&x)[T], __m256 (&acc)[T][2]) {
        __m256i sum[T][2];
        Format::sums(codes, x, sum);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            const uint8_t* half_scale = scales + 8 * half * Format::kScaleBytes;
            const __m256 scale = Format::scale(half_scale);
#pragma GCC unroll 4
            for (int t = 0; t < T; ++t) {
                const __m256 token_scale = broadcast_float(&x[t]->block.scale);
                acc[t][half] =
                    _mm256_fmadd_ps(_mm256_mul_ps(scale, token_scale), _mm256_cvtepi32_ps(sum[t][half]), acc[t][half]);
                if constexpr (Format::kCodec == Codec::q4_1)
                    acc[t][half] = _mm256_fmadd_ps(_mm256_mul_ps(Format::minimum(half_scale), token_scale),
                                                   broadcast_float(&x[t]->block.sum), acc[t][half]);
            }
        }
    }

    template <int T, Fetch F>
    static void run_tile(const TileJob& job) {
        __m256 acc[T][2] = {}, first[T][2] = {}, second[T][2] = {};
        walk_blocks<Format::kCodec, F>(
            job,
            [&](const uint8_t* scales, const uint8_t* codes, int b) {
                const PairedBlock* x[T];
#pragma GCC unroll 4
                for (int t = 0; t < T; ++t) x[t] = reinterpret_cast<const PairedBlock*>(job.x[t]) + b;
                multiply_block<T>(scales, codes, x, acc);
            },
            [&](int segment) {
#pragma GCC unroll 4
                for (int t = 0; t < T; ++t)
#pragma GCC unroll 2
                    for (int half = 0; half < 2; ++half) {
                        const __m256 sum = acc[t][half];
                        if (segment == 0) first[t][half] = sum;
                        if (segment == 1) first[t][half] = _mm256_add_ps(first[t][half], sum);
                        if (segment == 2) second[t][half] = sum;
                        if (segment == 3) second[t][half] = _mm256_add_ps(second[t][half], sum);
                        acc[t][half] = _mm256_setzero_ps();
                    }
            });
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) {
            const auto result = [&](int half) {
                return canonical(
                    _mm256_mul_ps(_mm256_add_ps(first[t][half], second[t][half]), _mm256_set1_ps(kInfo.post)));
            };
            store_rows(job.y + static_cast<size_t>(t) * job.ldy, job.rows, result(0), result(1));
        }
    }

    template <int T>
    static void run(const TileJob& job) {
        if (T > 2 && job.from_memory) return run_tile<T, Fetch::far>(job);
        run_tile<T, Fetch::none>(job);
    }
};

}  // namespace

void integer_gemm(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y,
                  size_t ldy) {
    gemm_by_codec<IntegerKernel<Q80>, IntegerKernel<Q40>, IntegerKernel<Q41>, IntegerKernel<Mxfp4>>(
        m, tile_begin, tile_end, x, tokens, y, ldy);
}

}  // namespace freetoken::avx2
