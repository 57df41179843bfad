// Integer codecs by AVX2. A lane owns a row.
#include "kernels/avx2/avx2.h"
#include "kernels/avx2/formats.h"
#include "kernels/driver.h"

namespace freetoken::avx2 {
namespace {

// Adds products of codes and bytes of q, in 16 bits.
Line add_products(Line sum, Line codes, __m256i q) {
    const auto add = [&](__m256i sum, __m256i codes) {
        return in_order(_mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, q)));
    };
    return {add(sum.lo, codes.lo), add(sum.hi, codes.hi)};
}

Line add_products(Line sum, const Line (&codes)[2], __m256i q0, __m256i q1) {
    const auto add = [&](__m256i sum, __m256i codes0, __m256i codes1) {
        const __m256i both = _mm256_add_epi16(_mm256_maddubs_epi16(codes0, q0), _mm256_maddubs_epi16(codes1, q1));
        return in_order(_mm256_add_epi16(sum, both));
    };
    return {add(sum.lo, codes[0].lo, codes[1].lo), add(sum.hi, codes[0].hi, codes[1].hi)};
}

// Lines of codes whose products with bytes of q 16 bits can sum: each adds two products of a code with at most 128 for
// every part. None where a single line may not fit.
template <class Format>
constexpr int lines_per_sum() {
    for (int lines = Format::kLines / Format::kHalves; lines > 0; lines /= 2)
        if (lines * Format::kParts * 2 * Format::kLargestCode * 128 < 32768) return lines;
    return 0;
}

template <int N>
[[gnu::always_inline]] inline void fetch_lines(const uint8_t* p) {
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) __builtin_prefetch(p + 64 * i, 0, 3);
}

// The sums of one half by vpmaddubsw: unsigned codes times signed bytes of q, high and low apart.
template <class Format, int T>
[[gnu::always_inline]] inline void sum_bytes(const typename Format::Codes& codes, int half, const WordFactors& factors,
                                             const PairedBlock* const (&x)[T], Line (&sum)[T]) {
    constexpr int kLines = Format::kLines / Format::kHalves;
    constexpr int kStep = lines_per_sum<Format>();
    static_assert(kLines % kStep == 0 && Format::kParts % 2 == 0);
    static_assert(!Format::kIntegerScales || kLines == kStep);  // sums start once
#pragma GCC unroll 4
    for (int step = half * kLines; step < (half + 1) * kLines; step += kStep) {
        Line high[T] = {}, low[T] = {};
        if constexpr (Format::kIntegerScales) {
#pragma GCC unroll 4
            for (int t = 0; t < T; ++t) {
                high[t] = both(Format::high_start(x[t]->halves, half));
                low[t] = both(Format::low_start(x[t]->halves, half));
            }
        }
#pragma GCC unroll 4
        for (int line = step; line < step + kStep; ++line) {
#pragma GCC unroll 2
            for (int part = 0; part < Format::kParts; part += 2) {
                const int k = 4 * (line * Format::kParts + part);
                const Line c[2] = {codes(line, part), codes(line, part + 1)};
#pragma GCC unroll 4
                for (int t = 0; t < T; ++t) {
                    const int8_t* hi = x[t]->block.hi + k;
                    const int8_t* lo = x[t]->block.lo + k;
                    if constexpr (T == 1 && kStep * Format::kParts > 2) {
                        // One at a time: both parts' codes at once would leave no registers for it all.
                        high[t] = add_products(high[t], c[0], broadcast32(hi));
                        low[t] = add_products(low[t], c[0], broadcast32(lo));
                        high[t] = add_products(high[t], c[1], broadcast32(hi + 4));
                        low[t] = add_products(low[t], c[1], broadcast32(lo + 4));
                    } else {
                        high[t] = add_products(high[t], c, broadcast32(hi), broadcast32(hi + 4));
                        low[t] = add_products(low[t], c, broadcast32(lo), broadcast32(lo + 4));
                    }
                }
            }
        }
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) sum[t] = add_pairs(sum[t], high[t], factors.high, low[t], factors.low);
    }
}

// The same by vpmaddwd: codes and whole values of q, 16 bits both, the even bytes of codes and the odd ones apart.
// Integer scales multiply the codes, which all tokens share.
template <class Format, int T>
[[gnu::always_inline]] inline void sum_words(const typename Format::Codes& codes, int half, const WordFactors& factors,
                                             const PairedBlock* const (&x)[T], Line (&sum)[T]) {
    constexpr int kLines = Format::kLines / Format::kHalves;
    constexpr int kLargest = Format::kLargestCode * (Format::kIntegerScales ? 32 : 1);
    static_assert(int64_t{kLargest} * kQuantMax * kBlock < INT32_MAX / 2);  // the rest is for -Z * sum(q)
    const auto times = [&](Line a) -> Line {
        if constexpr (!Format::kIntegerScales) return a;
        return {_mm256_mullo_epi16(a.lo, factors.low.lo), _mm256_mullo_epi16(a.hi, factors.low.hi)};
    };
    if constexpr (Format::kIntegerScales) {
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t)
            sum[t] = add_pairs(sum[t], both(Format::high_start(x[t]->halves, half)), factors.high,
                               both(Format::low_start(x[t]->halves, half)), factors.low);
    }
    const __m256i low_byte = _mm256_set1_epi16(0xFF);
#pragma GCC unroll 8
    for (int line = half * kLines; line < (half + 1) * kLines; ++line) {
#pragma GCC unroll 4
        for (int part = 0; part < Format::kParts; ++part) {
            const Line c = codes(line, part);
            const Line even = times({_mm256_and_si256(c.lo, low_byte), _mm256_and_si256(c.hi, low_byte)});
            const Line odd = times({_mm256_srli_epi16(c.lo, 8), _mm256_srli_epi16(c.hi, 8)});
            const int k = 4 * (line * Format::kParts + part);
#pragma GCC unroll 4
            for (int t = 0; t < T; ++t)
                sum[t] = add_pairs(sum[t], even, both(broadcast32(x[t]->pairs + k)), odd,
                                   both(broadcast32(x[t]->pairs + k + 2)));
        }
    }
}

template <class Format>
struct IntegerKernel {
    static constexpr int kGroup = 4;
    static constexpr Codec kCodec = Format::kCodec;
    static constexpr CodecInfo kInfo = codec_info(kCodec);
    static constexpr int kBlockLines = Format::kLines + Format::kUpperLines;

    // sum + the products of a half's codes and q, times factors.
    template <int T>
    [[gnu::always_inline]] static inline void add_half(const uint8_t* codes, int half, const WordFactors& factors,
                                                       const PairedBlock* const (&x)[T], Line (&sum)[T]) {
        // Where 16 bits hold a single line, bytes save little, and nothing once several tokens share the words.
        if constexpr (lines_per_sum<Format>() > (T > 2 ? 1 : 0))
            sum_bytes<Format>({codes}, half, factors, x, sum);
        else
            sum_words<Format>({codes}, half, factors, x, sum);
    }

    template <int T>
    [[gnu::always_inline]] static inline void multiply_block(const typename Format::Group& group, const uint8_t* scales,
                                                             const uint8_t* codes, const PairedBlock* const (&x)[T],
                                                             Rows (&acc)[T]) {
        const WordFactors factors = {both(_mm256_set1_epi16(256)), both(_mm256_set1_epi16(1))};
#pragma GCC unroll 2
        for (int half = 0; half < Format::kHalves; ++half) {
            Line sum[T];
#pragma GCC unroll 4
            for (int t = 0; t < T; ++t) sum[t] = both(Format::correction(x[t]->block, half));
            add_half(codes, half, factors, x, sum);
            const Rows factor = Format::factor(group, scales, half);
#pragma GCC unroll 4
            for (int t = 0; t < T; ++t) {
                Rows total = floats(sum[t]);
                // Both products and their difference stay below 2^24: exact.
                if constexpr (Format::kZeros)
                    total = fma(Format::zero(group, scales), -broadcast(x[t]->block.sum), total);
                acc[t] = fma(factor * broadcast(x[t]->block.scale), total, acc[t]);
            }
        }
        if constexpr (Format::kMinimum) {
            const Rows minimum = Format::minimum(group, scales, 0);
#pragma GCC unroll 4
            for (int t = 0; t < T; ++t)
                acc[t] = fma(minimum * broadcast(x[t]->block.scale), broadcast(x[t]->block.sum), acc[t]);
        }
    }

    template <int T>
    [[gnu::always_inline]] static inline void multiply_halves(const typename Format::Group& group,
                                                              const uint8_t* scales, const uint8_t* codes,
                                                              const PairedBlock* const (&x)[T], Rows (&acc)[T]) {
        Line sum[T] = {};
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) add_half(codes, half, Format::factors(scales, half), x, sum);
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) {
            Rows total = group.d * floats(sum[t]);
            if constexpr (Format::kMinimum)
                total = fma(group.minus_dmin, floats(Format::minima(scales, x[t]->halves)), total);
            acc[t] = fma(total, broadcast(x[t]->block.scale), acc[t]);
        }
    }

    template <int T, Fetch F>
    static void run_tile(const TileJob& job) {
        Rows acc[T] = {}, first[T] = {}, second[T] = {};
        typename Format::Group group;
        walk_blocks<kCodec, F>(
            job, [&](const uint8_t* header) { Format::open_group(header, group); },
            [&](const uint8_t* scales, const uint8_t* codes, int b) {
                // A format with upper lines meets them before others, and the hardware loses the stream: show it the
                // next block's lines in order.
                if constexpr (T <= 2 && Format::kUpperLines > 0)
                    fetch_lines<kBlockLines>(codes + kBlockLines * kScaleLine);
                const PairedBlock* x[T];
#pragma GCC unroll 4
                for (int t = 0; t < T; ++t) x[t] = reinterpret_cast<const PairedBlock*>(job.x[t]) + b;
                if constexpr (Format::kIntegerScales)
                    multiply_halves<T>(group, scales, codes, x, acc);
                else
                    multiply_block<T>(group, scales, codes, x, acc);
            },
            [&](int segment) {
#pragma GCC unroll 4
                for (int t = 0; t < T; ++t) {
                    if (segment == 0) first[t] = acc[t];
                    if (segment == 1) first[t] = first[t] + acc[t];
                    if (segment == 2) second[t] = acc[t];
                    if (segment == 3) second[t] = second[t] + acc[t];
                    acc[t] = broadcast(0.0f);
                }
            });
        const Rows factor = kInfo.row_line ? load_rows(job.tile) : broadcast(kInfo.post);
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) store_rows(job, t, (first[t] + second[t]) * factor);
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

}  // namespace freetoken::avx2
