// Integer codecs by VNNI. A lane owns a row: vpdpbusd multiplies its four unsigned codes with four signed bytes of a
// token, high and low halves apart, so a block's sum is an exact integer.
#include <type_traits>

#include "kernels/avx512/avx512.h"
#include "kernels/avx512/formats.h"
#include "kernels/driver.h"

namespace freetoken::avx512 {
namespace {

template <class Format>
struct IntegerKernel {
    static constexpr int kGroup = 8;
    static constexpr Codec kCodec = Format::kCodec;
    static constexpr CodecInfo kInfo = codec_info(kCodec);
    static constexpr int kBlockLines = Format::kLines + Format::kUpperLines;
    using Group = typename Format::Group;

    template <int T>
    using Lines = std::conditional_t<
        (T > 2), LinesInPlace,
        std::conditional_t<Format::kIntegerScales, FewLinesInOrder<kBlockLines>,
                           std::conditional_t<(Format::kUpperLines > 0), LinesInOrder<kBlockLines>, LinesInPlace>>>;

    // high and low + the products of a half's codes and bytes of q; of the whole block where it has one scale.
    template <int T>
    [[gnu::always_inline]] static inline void add_products(const Group& group, const Lines<T>& lines, int half,
                                                           const SummedBlock* const (&q)[T], __m512i (&high)[T],
                                                           __m512i (&low)[T]) {
        constexpr int kLines = Format::kLines / Format::kHalves;
#pragma GCC unroll 8
        for (int line = half * kLines; line < (half + 1) * kLines; ++line) {
#pragma GCC unroll 4
            for (int part = 0; part < Format::kParts; ++part) {
                const __m512i c = Format::codes(group, lines, line, part);
                const int k = 4 * (line * Format::kParts + part);
#pragma GCC unroll 8
                for (int t = 0; t < T; ++t) {
                    high[t] = dot_bytes(high[t], c, q[t]->block.hi + k);
                    low[t] = dot_bytes(low[t], c, q[t]->block.lo + k);
                }
            }
        }
    }

    template <int T>
    [[gnu::always_inline]] static inline void multiply_block(const Group& group, const uint8_t* scales,
                                                             const uint8_t* codes, const SummedBlock* const (&q)[T],
                                                             __m512 (&acc)[T]) {
        const Lines<T> lines{codes};
#pragma GCC unroll 2
        for (int half = 0; half < Format::kHalves; ++half) {
            __m512i high[T], low[T];
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) {
                high[t] = _mm512_setzero_si512();
                low[t] = Format::correction(&q[t]->block, half);
            }
            add_products<T>(group, lines, half, q, high, low);
            const __m512 factor = Format::factor(group, scales, half);
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) {
                __m512 sum = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high[t], 8), low[t]));
                // Both terms and their difference are integers below 2^24: exact.
                if constexpr (Format::kZeros)
                    sum = _mm512_fnmadd_ps(Format::zero(group, scales), broadcast_float(&q[t]->block.sum), sum);
                acc[t] = _mm512_fmadd_ps(_mm512_mul_ps(factor, broadcast_float(&q[t]->block.scale)), sum, acc[t]);
            }
        }
        if constexpr (Format::kMinimum) {
            const __m512 minimum = Format::minimum(group, scales, 0);
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t)
                acc[t] = _mm512_fmadd_ps(_mm512_mul_ps(minimum, broadcast_float(&q[t]->block.scale)),
                                         broadcast_float(&q[t]->block.sum), acc[t]);
        }
    }

    // The sums of both halves, each times its integer scale, added up. A half's sums of high and of low bytes fit 16
    // bits, so the scales multiply them as words: both halves at once, or one by one where eight tokens' sums of both
    // would leave no registers.
    template <int T>
    [[gnu::always_inline]] static inline void sum_halves(const Group& group, const uint8_t* scales,
                                                         const uint8_t* codes, const SummedBlock* const (&q)[T],
                                                         __m512i (&sum)[T]) {
        const Lines<T> lines{codes};
        const __m512i scale = Format::scales(scales);
        __m512i high[2][T], low[2][T];
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) {
                high[half][t] = Format::high_start(q[t]->halves, half);
                low[half][t] = Format::low_start(q[t]->halves, half);
            }
            add_products<T>(group, lines, half, q, high[half], low[half]);
            if constexpr (T > 2) {
                const __m512i own =
                    half == 0 ? _mm512_and_si512(scale, _mm512_set1_epi32(0xFFFF)) : _mm512_srli_epi32(scale, 16);
                const __m512i own_256 = _mm512_slli_epi16(own, 8);
#pragma GCC unroll 8
                for (int t = 0; t < T; ++t) {
                    const __m512i start = half == 0 ? _mm512_setzero_si512() : sum[t];
                    sum[t] = dot_words(dot_words(start, low[half][t], own), high[half][t], own_256);
                }
            }
        }
        if constexpr (T <= 2) {
            const __m512i scale_256 = _mm512_slli_epi16(scale, 8);
#pragma GCC unroll 2
            for (int t = 0; t < T; ++t)
                sum[t] = dot_words(_mm512_madd_epi16(word_pairs(low[0][t], low[1][t]), scale),
                                   word_pairs(high[0][t], high[1][t]), scale_256);
        }
    }

    template <int T>
    [[gnu::always_inline]] static inline void multiply_halves(const Group& group, const uint8_t* scales,
                                                              const uint8_t* codes, const SummedBlock* const (&q)[T],
                                                              __m512 (&acc)[T]) {
        __m512i sum[T];
        sum_halves<T>(group, scales, codes, q, sum);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            __m512 total = _mm512_mul_ps(group.d, _mm512_cvtepi32_ps(sum[t]));
            if constexpr (Format::kMinimum) {
                const __m512i minima = Format::minima(scales, q[t]->halves);
                total = _mm512_fmadd_ps(group.minus_dmin, _mm512_cvtepi32_ps(minima), total);
            }
            acc[t] = _mm512_fmadd_ps(total, broadcast_float(&q[t]->block.scale), acc[t]);
        }
    }

    template <int T, Fetch F>
    static void run_tile(const TileJob& job) {
        const uint8_t* x[T];
        __m512 acc[T] = {}, first[T] = {}, second[T] = {};
        Group group{};
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) x[t] = job.x[t];
        walk_blocks<Format::kCodec, F>(
            job, [&](const uint8_t* header) { group = Format::open_group(header); },
            [&](const uint8_t* scales, const uint8_t* codes, int b) {
                const SummedBlock* q[T];
#pragma GCC unroll 8
                for (int t = 0; t < T; ++t) q[t] = reinterpret_cast<const SummedBlock*>(x[t]) + b;
                if constexpr (Format::kIntegerScales)
                    multiply_halves<T>(group, scales, codes, q, acc);
                else
                    multiply_block<T>(group, scales, codes, q, acc);
            },
            [&](int segment) {
#pragma GCC unroll 8
                for (int t = 0; t < T; ++t) {
                    if (segment == 0) first[t] = acc[t];
                    if (segment == 1) first[t] = _mm512_add_ps(first[t], acc[t]);
                    if (segment == 2) second[t] = acc[t];
                    if (segment == 3) second[t] = _mm512_add_ps(second[t], acc[t]);
                    acc[t] = _mm512_setzero_ps();
                }
            });
        const __mmask16 mask = lane_mask(job.rows);
        const __m512 post = kInfo.row_line ? _mm512_loadu_ps(job.tile) : _mm512_set1_ps(kInfo.post);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const __m512 sum = _mm512_mul_ps(_mm512_add_ps(first[t], second[t]), post);
            _mm512_mask_storeu_ps(job.y + static_cast<size_t>(t) * job.ldy, mask, canonical(sum));
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
    gemm_by_codec<IntegerKernel<Q80>, IntegerKernel<Q40>, IntegerKernel<Q41>, IntegerKernel<Q50>, IntegerKernel<Q51>,
                  IntegerKernel<Mxfp4>, IntegerKernel<Iq4Nl>, IntegerKernel<Iq4Xs>, IntegerKernel<Q2K>,
                  IntegerKernel<Q3K>, IntegerKernel<Q4K>, IntegerKernel<Q5K>, IntegerKernel<Q6K>, IntegerKernel<Nvfp4>,
                  IntegerKernel<Int4_32>, IntegerKernel<Int4_32z>, IntegerKernel<Int4_128z>>(m, tile_begin, tile_end, x,
                                                                                             tokens, y, ldy);
}

}  // namespace freetoken::avx512
