// Scaled floats: e4m3 weights under a scale a block. A line of codes is four columns of sixteen rows; accumulator k mod
// 4 takes column k, and a block's sum goes to the row's under the block's scale.
#include <cstring>

#include "kernels/avx512/avx512.h"
#include "kernels/avx512/simd.h"
#include "kernels/driver.h"

namespace freetoken::avx512 {
namespace {

// The codes of column s of a line are the upper bytes of these words.
__m256i column_words(const uint8_t* line, int s) {
    return load_half_line(line + 32 * (s % 2) - 1 + s / 2);
}

// The words' upper bytes as f32, 2^-120 of their values: behind four zero bits of exponent an e4m3 is a bfloat16 of
// that size, subnormal where the code is. Its products with activations 2^112 times as large are those of the contract,
// which wants 2^-8 of the values. By way of binary16, which gives these at once, decoding takes a third longer.
__m512 tiny_e4m3(__m256i words, __m512i places) {
    const __m256i own_bits = _mm256_set1_epi16(static_cast<int16_t>(0x87F0));
    const __m256i bfloats = _mm256_and_si256(_mm256_srai_epi16(words, 4), own_bits);
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xAAAAAAAAu, places, _mm512_castsi256_si512(bfloats)));
}

// For tiny_e4m3: word r goes to the upper word of dword r. The compiler may not load them again for every use.
__m512i upper_places() {
    __m512i v = _mm512_slli_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 16);
    asm("" : "+v"(v));
    return v;
}

// Whether a subnormal factor costs nothing. Intel's cores hand each such product to microcode, which takes longer than
// all that tiny_e4m3 saves.
bool subnormals_are_free() {
    return __builtin_cpu_is("amd") != 0;
}

// Whether the activations are small enough to be enlarged.
bool can_be_enlarged(const uint8_t* row, int cols) {
    int32_t finite;
    std::memcpy(&finite, row + 2 * plain_row_bytes(cols), sizeof finite);
    return finite != 0;
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

    // Adds `columns` columns under one scale.
    template <int T, bool kTiny, Fetch F>
    [[gnu::always_inline]] static inline void multiply_block(const uint8_t* scales, const uint8_t* codes,
                                                             const uint8_t* const (&x)[T], int columns, __m512i places,
                                                             __m512 (&acc)[T]) {
        __m512 sums[T][kFloatColumns] = {};
        const size_t end = static_cast<size_t>(columns) * sizeof(float);
        for (size_t offset = 0; offset < end; offset += kStep, codes += kScaleLine) {
            fetch_ahead<F>(codes, kScaleLine);
#pragma GCC unroll 4
            for (int s = 0; s < kFloatColumns; ++s) {
                const __m256i words = column_words(codes, s);
                const __m512 w = kTiny ? tiny_e4m3(words, places) : upper_e4m3(words);
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

    template <int T, bool kTiny, Fetch F>
    static void run_tile(const TileJob& job) {
        __m512 acc[T] = {};
        const __m512i places = upper_places();
        walk_scaled_blocks<C, F>(job, [&](const uint8_t* scales, const uint8_t* codes, int k, int columns) {
            const size_t offset = static_cast<size_t>(k) * sizeof(float) + (kTiny ? plain_row_bytes(job.cols) : 0);
            const uint8_t* x[T];
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) x[t] = job.x[t] + offset;
            multiply_block<T, kTiny, F>(scales, codes, x, columns, places, acc);
        });
        const __mmask16 mask = lane_mask(job.rows);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const __m512 result = _mm512_mul_ps(acc[t], _mm512_set1_ps(kInfo.post));
            _mm512_mask_storeu_ps(job.y + static_cast<size_t>(t) * job.ldy, mask, canonical(result));
        }
    }

    // Decoding is worth its own way for one or two tokens; for more it is a small part of the work.
    template <int T>
    static void run(const TileJob& job) {
        if constexpr (T <= 2) {
            if (subnormals_are_free() && can_be_enlarged(job.x[0], job.cols) && can_be_enlarged(job.x[T - 1], job.cols))
                return run_tile<T, true, Fetch::none>(job);
            return run_tile<T, false, Fetch::none>(job);
        }
        if (job.from_memory) return run_tile<T, false, Fetch::far>(job);
        run_tile<T, false, Fetch::none>(job);
    }
};

}  // namespace

void scaled_gemm(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y,
                 size_t ldy) {
    gemm_by_codec<ScaledKernel<Codec::fp8>, ScaledKernel<Codec::mxfp8>>(m, tile_begin, tile_end, x, tokens, y, ldy);
}

}  // namespace freetoken::avx512
