// Integer codecs by VNNI. A lane owns a row: vpdpbusd multiplies its four unsigned codes with four signed bytes of a
// token, high and low halves apart, so a block's sum is an exact integer.
#include "kernels/avx512/avx512.h"
#include "kernels/avx512/simd.h"
#include "kernels/driver.h"

namespace freetoken::avx512 {
namespace {

__m512i load_line(const uint8_t* p) {
    return _mm512_loadu_si512(p);
}

// What differs between codecs: `codes` turns 64 packed bytes into unsigned codes (part 0: low nibbles, part 1: high
// ones), `correction` starts the sum of the low halves at -Z * sum(q), `scale` reads the scales of sixteen rows.
struct NibbleFormat {
    static constexpr int kLines = 4;
    static constexpr int kParts = 2;
};

struct Q40 : NibbleFormat {
    static constexpr Codec kCodec = Codec::q4_0;
    static __m512i codes(__m512i v, int part) {
        return _mm512_and_si512(part == 0 ? v : _mm512_srli_epi16(v, 4), _mm512_set1_epi8(15));
    }
    static __m512i correction(const QuantBlock* x) { return broadcast32(&x->minus_8_sums); }
    static __m512 scale(const uint8_t* p) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
};

struct Q41 : NibbleFormat {
    static constexpr Codec kCodec = Codec::q4_1;
    static __m512i codes(__m512i v, int part) { return Q40::codes(v, part); }
    static __m512i correction(const QuantBlock*) { return _mm512_setzero_si512(); }
    static __m512 scale(const uint8_t* p) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(load_line(p))); }
    static __m512 minimum(const uint8_t* p) {
        return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(load_line(p), 16)));
    }
};

struct Mxfp4 : NibbleFormat {
    static constexpr Codec kCodec = Codec::mxfp4;
    static __m512i codes(__m512i v, int part) {
        // vpermb looks at six bits of an index; the table repeats every sixteen entries, so the upper two do no harm.
        const __m512i table =
            _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
        return _mm512_permutexvar_epi8(part == 0 ? v : _mm512_srli_epi16(v, 4), table);
    }
    static __m512i correction(const QuantBlock* x) { return broadcast32(&x->minus_12_sums); }
    static __m512 scale(const uint8_t* p) {
        const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_slli_epi32(e, 23), _mm512_set1_epi32(0x00400000)));
    }
};

struct Q80 {
    static constexpr Codec kCodec = Codec::q8_0;
    static constexpr int kLines = 8;
    static constexpr int kParts = 1;
    static __m512i codes(__m512i v, int) { return v; }
    static __m512i correction(const QuantBlock* x) { return _mm512_slli_epi32(broadcast32(&x->minus_8_sums), 4); }
    static __m512 scale(const uint8_t* p) { return Q40::scale(p); }
};

template <class Format>
struct IntegerKernel {
    static constexpr int kGroup = 8;
    static constexpr Codec kCodec = Format::kCodec;
    static constexpr CodecInfo kInfo = codec_info(kCodec);

    template <int T>
    [[gnu::always_inline]] static inline void multiply_block(const uint8_t* scales, const uint8_t* codes,
                                                             const uint8_t* const (&x)[T], size_t offset,
                                                             __m512 (&acc)[T]) {
        __m512i high[T], low[T];
        const QuantBlock* q[T];
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            q[t] = reinterpret_cast<const QuantBlock*>(x[t] + offset);
            high[t] = _mm512_setzero_si512();
            low[t] = Format::correction(q[t]);
        }
#pragma GCC unroll 8
        for (int line = 0; line < Format::kLines; ++line) {
            const __m512i packed = load_line(codes + 64 * line);
#pragma GCC unroll 2
            for (int part = 0; part < Format::kParts; ++part) {
                const __m512i c = Format::codes(packed, part);
                const int k = 4 * (line * Format::kParts + part);
#pragma GCC unroll 8
                for (int t = 0; t < T; ++t) {
                    high[t] = _mm512_dpbusd_epi32(high[t], c, broadcast32(q[t]->hi + k));
                    low[t] = _mm512_dpbusd_epi32(low[t], c, broadcast32(q[t]->lo + k));
                }
            }
        }
        const __m512 scale = Format::scale(scales);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high[t], 8), low[t]);
            const __m512 token_scale = broadcast_float(&q[t]->scale);
            acc[t] = _mm512_fmadd_ps(_mm512_mul_ps(scale, token_scale), _mm512_cvtepi32_ps(sum), acc[t]);
            if constexpr (Format::kCodec == Codec::q4_1)
                acc[t] = _mm512_fmadd_ps(_mm512_mul_ps(Format::minimum(scales), token_scale),
                                         broadcast_float(&q[t]->sum), acc[t]);
        }
    }

    template <int T, Fetch F>
    static void run_tile(const TileJob& job) {
        const uint8_t* x[T];
        __m512 acc[T] = {}, first[T] = {}, second[T] = {};
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) x[t] = job.x[t];
        walk_blocks<Format::kCodec, F>(
            job,
            [&](const uint8_t* scales, const uint8_t* codes, int b) {
                multiply_block<T>(scales, codes, x, static_cast<size_t>(b) * sizeof(QuantBlock), acc);
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
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const __m512 sum = _mm512_mul_ps(_mm512_add_ps(first[t], second[t]), _mm512_set1_ps(kInfo.post));
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
    gemm_by_codec<IntegerKernel<Q80>, IntegerKernel<Q40>, IntegerKernel<Q41>, IntegerKernel<Mxfp4>>(
        m, tile_begin, tile_end, x, tokens, y, ldy);
}

}  // namespace freetoken::avx512
