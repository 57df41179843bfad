// Integer codecs by AVX2. A lane owns a row; a tile is two sides of eight lanes.
#include "kernels/avx2/avx2.h"
#include "kernels/avx2/formats.h"
#include "kernels/driver.h"

namespace freetoken::avx2 {
namespace {

// Keeps the compiler from adding up in a tree, for which there are not registers enough.
__m256i in_order(__m256i v) {
    asm("" : "+x"(v));
    return v;
}

// Lines of codes whose products with bytes of q 16 bits can sum: each adds two products of a code with at most 128 for
// every part. None where a single line may not fit.
template <class Format>
constexpr int lines_per_sum() {
    for (int lines = Format::kLines / Format::kHalves; lines > 0; lines /= 2)
        if (lines * Format::kParts * 2 * Format::kLargestCode * 128 < 32768) return lines;
    return 0;
}

// The sums of one half by vpmaddubsw: unsigned codes times signed bytes of q, high and low apart.
template <class Format, int T>
[[gnu::always_inline]] inline void add_bytes(const typename Format::Codes& codes, int begin,
                                             const PairedBlock* const (&x)[T], __m256i (&sum)[T][2]) {
    constexpr int kLines = Format::kLines / Format::kHalves;
    constexpr int kStep = lines_per_sum<Format>();
    static_assert(kLines % kStep == 0);
#pragma GCC unroll 4
    for (int step = begin; step < begin + kLines; step += kStep) {
        __m256i high[T][2] = {}, low[T][2] = {};
#pragma GCC unroll 4
        for (int line = step; line < step + kStep; ++line) {
#pragma GCC unroll 2
            for (int part = 0; part < Format::kParts; ++part) {
                const __m256i upper = codes(line, part, 0);
                const __m256i lower = codes(line, part, 1);
                const int k = 4 * (line * Format::kParts + part);
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
            for (int side = 0; side < 2; ++side) {
                const __m256i h = _mm256_madd_epi16(high[t][side], _mm256_set1_epi16(256));
                const __m256i l = _mm256_madd_epi16(low[t][side], _mm256_set1_epi16(1));
                sum[t][side] = _mm256_add_epi32(sum[t][side], _mm256_add_epi32(h, l));
            }
    }
}

// The same by vpmaddwd: codes and whole values of q, 16 bits both, the even bytes of codes and the odd ones apart.
template <class Format, int T>
[[gnu::always_inline]] inline void add_words(const typename Format::Codes& codes, int begin,
                                             const PairedBlock* const (&x)[T], __m256i (&sum)[T][2]) {
#pragma GCC unroll 8
    for (int line = begin; line < begin + Format::kLines / Format::kHalves; ++line) {
#pragma GCC unroll 2
        for (int part = 0; part < Format::kParts; ++part) {
            const __m256i both[2] = {codes(line, part, 0), codes(line, part, 1)};
            const int k = 4 * (line * Format::kParts + part);
            __m256i even[2], odd[2];
#pragma GCC unroll 2
            for (int side = 0; side < 2; ++side) {
                even[side] = _mm256_and_si256(both[side], _mm256_set1_epi16(0xFF));
                odd[side] = _mm256_srli_epi16(both[side], 8);
            }
#pragma GCC unroll 4
            for (int t = 0; t < T; ++t) {
                const __m256i even_q = broadcast32(x[t]->pairs + k);
                const __m256i odd_q = broadcast32(x[t]->pairs + k + 2);
#pragma GCC unroll 2
                for (int side = 0; side < 2; ++side) {
                    sum[t][side] = in_order(_mm256_add_epi32(sum[t][side], _mm256_madd_epi16(even[side], even_q)));
                    sum[t][side] = in_order(_mm256_add_epi32(sum[t][side], _mm256_madd_epi16(odd[side], odd_q)));
                }
            }
        }
    }
}

template <class Format>
struct IntegerKernel {
    static constexpr int kGroup = 4;
    static constexpr Codec kCodec = Format::kCodec;
    static constexpr CodecInfo kInfo = codec_info(kCodec);

    template <int T>
    [[gnu::always_inline]] static inline void multiply_block(const typename Format::Group& group, const uint8_t* scales,
                                                             const uint8_t* codes, const PairedBlock* const (&x)[T],
                                                             __m256 (&acc)[T][2]) {
#pragma GCC unroll 2
        for (int half = 0; half < Format::kHalves; ++half) {
            const int begin = half * (Format::kLines / Format::kHalves);
            __m256i sum[T][2];
#pragma GCC unroll 4
            for (int t = 0; t < T; ++t) sum[t][0] = sum[t][1] = Format::correction(x[t]->block, half);
            if constexpr (lines_per_sum<Format>() > 0)
                add_bytes<Format>({codes}, begin, x, sum);
            else
                add_words<Format>({codes}, begin, x, sum);
            const Rows factor = Format::factor(group, scales, half);
#pragma GCC unroll 4
            for (int t = 0; t < T; ++t)
#pragma GCC unroll 2
                for (int side = 0; side < 2; ++side) {
                    __m256 total = _mm256_cvtepi32_ps(sum[t][side]);
                    // Both products and their difference stay below 2^24: exact.
                    if constexpr (Format::kZeros)
                        total = _mm256_fnmadd_ps(Format::zero(group, scales).side[side],
                                                 broadcast_float(&x[t]->block.sum), total);
                    const __m256 scale = _mm256_mul_ps(factor.side[side], broadcast_float(&x[t]->block.scale));
                    acc[t][side] = _mm256_fmadd_ps(scale, total, acc[t][side]);
                }
        }
        if constexpr (Format::kMinimum) {
            const Rows minimum = Format::minimum(group, scales);
#pragma GCC unroll 4
            for (int t = 0; t < T; ++t)
#pragma GCC unroll 2
                for (int side = 0; side < 2; ++side) {
                    const __m256 scale = _mm256_mul_ps(minimum.side[side], broadcast_float(&x[t]->block.scale));
                    acc[t][side] = _mm256_fmadd_ps(scale, broadcast_float(&x[t]->block.sum), acc[t][side]);
                }
        }
    }

    template <int T, Fetch F>
    static void run_tile(const TileJob& job) {
        __m256 acc[T][2] = {}, first[T][2] = {}, second[T][2] = {};
        typename Format::Group group{};
        walk_blocks<kCodec, F>(
            job, [&](const uint8_t* header) { group = Format::open_group(header); },
            [&](const uint8_t* scales, const uint8_t* codes, int b) {
                const PairedBlock* x[T];
#pragma GCC unroll 4
                for (int t = 0; t < T; ++t) x[t] = reinterpret_cast<const PairedBlock*>(job.x[t]) + b;
                multiply_block<T>(group, scales, codes, x, acc);
            },
            [&](int segment) {
#pragma GCC unroll 4
                for (int t = 0; t < T; ++t)
#pragma GCC unroll 2
                    for (int side = 0; side < 2; ++side) {
                        const __m256 sum = acc[t][side];
                        if (segment == 0) first[t][side] = sum;
                        if (segment == 1) first[t][side] = _mm256_add_ps(first[t][side], sum);
                        if (segment == 2) second[t][side] = sum;
                        if (segment == 3) second[t][side] = _mm256_add_ps(second[t][side], sum);
                        acc[t][side] = _mm256_setzero_ps();
                    }
            });
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) {
            const auto result = [&](int side) {
                const __m256 post =
                    kInfo.row_line ? _mm256_castsi256_ps(load256(job.tile + 32 * side)) : _mm256_set1_ps(kInfo.post);
                return canonical(_mm256_mul_ps(_mm256_add_ps(first[t][side], second[t][side]), post));
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
    gemm_by_codec<IntegerKernel<Q80>, IntegerKernel<Q40>, IntegerKernel<Q41>, IntegerKernel<Mxfp4>,
                  IntegerKernel<Iq4Nl>, IntegerKernel<Q4K>, IntegerKernel<Q5K>, IntegerKernel<Q6K>,
                  IntegerKernel<Nvfp4>, IntegerKernel<Int4_32>, IntegerKernel<Int4_32z>, IntegerKernel<Int4_128z>>(
        m, tile_begin, tile_end, x, tokens, y, ldy);
}

}  // namespace freetoken::avx2
