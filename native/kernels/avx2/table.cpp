// AVX2 with FMA and F16C: packing of activations, the bandwidth yardstick, and the table.
#include <cstring>

#include "kernels/avx2/avx2.h"
#include "kernels/avx2/simd.h"
#include "kernels/glu.h"
#include "kernels/tables.h"

namespace freetoken::avx2 {
namespace {

size_t activation_bytes(ActivationForm form, int cols) {
    const size_t n = static_cast<size_t>(cols);
    if (form == ActivationForm::q16) return round_up_64((n + kBlock - 1) / kBlock * sizeof(PairedBlock));
    return round_up_64((n + kFloatColumns - 1) / kFloatColumns * kFloatColumns * sizeof(float));
}

// The largest of eight unsigned dwords.
uint32_t largest_of(__m256i v) {
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

int sum_of(__m256i v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
    return _mm_cvtsi128_si32(s);
}

// Thirty-two dwords that fit 16 bits as words in order.
__m256i words_of(__m256i first, __m256i second) {
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xD8);
}

__m256i bytes_of(__m256i first, __m256i second) {
    return _mm256_permute4x64_epi64(_mm256_packs_epi16(first, second), 0xD8);
}

void quantise_block(const float* x, PairedBlock* out) {
    __m256 v[4];
    __m256i magnitude = _mm256_setzero_si256();
    for (int i = 0; i < 4; ++i) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        // As integers, magnitudes order finite < Inf < NaN.
        magnitude =
            _mm256_max_epu32(magnitude, _mm256_and_si256(_mm256_castps_si256(v[i]), _mm256_set1_epi32(0x7FFFFFFF)));
    }
    const uint32_t largest_bits = largest_of(magnitude);
    const float largest = float_of(largest_bits);
    const bool finite = largest_bits < 0x7F800000u;
    if (!finite || largest < kTinyBlock) {
        std::memset(out, 0, sizeof *out);
        if (!finite) out->block.scale = float_of(kCanonicalNan);
        return;
    }
    out->block.scale = largest / static_cast<float>(kQuantMax);
    const __m256 inverse = _mm256_set1_ps(static_cast<float>(kQuantMax) / largest);
    __m256i q[4];
    for (int i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    set_sums(out->block, sum_of(_mm256_add_epi32(q[0], q[1])), sum_of(_mm256_add_epi32(q[2], q[3])));
    const __m256i words[2] = {words_of(q[0], q[1]), words_of(q[2], q[3])};
    // q = 256 hi + lo with lo signed: hi is (q + 128) >> 8, lo the low byte.
    const auto hi = [](__m256i w) { return _mm256_srai_epi16(_mm256_add_epi16(w, _mm256_set1_epi16(128)), 8); };
    const auto lo = [](__m256i w) { return _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8); };
    store256(out->block.hi, bytes_of(hi(words[0]), hi(words[1])));
    store256(out->block.lo, bytes_of(lo(words[0]), lo(words[1])));
    out->halves = half_sums(out->block);
    const __m256i swap =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    for (int i = 0; i < 2; ++i) store256(out->pairs + 16 * i, _mm256_shuffle_epi8(words[i], swap));
}

void pack_activations(ActivationForm form, const float* x, int cols, uint8_t* out) {
    if (form != ActivationForm::q16) {
        const size_t used = static_cast<size_t>(cols) * sizeof(float);
        std::memcpy(out, x, used);
        std::memset(out + used, 0, activation_bytes(form, cols) - used);
        return;
    }
    PairedBlock* blocks = reinterpret_cast<PairedBlock*>(out);
    const int whole = cols / kBlock;
    for (int b = 0; b < whole; ++b) quantise_block(x + b * kBlock, blocks + b);
    if (cols % kBlock == 0) return;
    float padded[kBlock] = {};
    std::memcpy(padded, x + whole * kBlock, static_cast<size_t>(cols % kBlock) * sizeof(float));
    quantise_block(padded, blocks + whole);
}

uint64_t read(const uint8_t* data, size_t bytes) {
    __m256i digest[8] = {};
    for (size_t i = 0; i < bytes; i += 256)
#pragma GCC unroll 8
        for (size_t j = 0; j < 8; ++j) digest[j] = _mm256_xor_si256(digest[j], load256(data + i + 32 * j));
    uint64_t all = 0;
    for (const __m256i d : digest) {
        uint64_t words[4];
        store256(words, d);
        all ^= words[0] ^ words[1] ^ words[2] ^ words[3];
    }
    return all;
}

void gemm(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y, size_t ldy) {
    switch (codec_info(m.codec).kind) {
        case CodecKind::plain:
            return float_gemm(m, tile_begin, tile_end, x, tokens, y, ldy);
        case CodecKind::scaled:
            return scaled_gemm(m, tile_begin, tile_end, x, tokens, y, ldy);
        case CodecKind::integer:
            return integer_gemm(m, tile_begin, tile_end, x, tokens, y, ldy);
    }
}

}  // namespace
}  // namespace freetoken::avx2

namespace freetoken {

const Kernels kAvx2Kernels = {
    "avx2", avx2::activation_bytes, avx2::pack_activations, avx2::gemm, glu_rows, glu_tiles, avx2::read};

}  // namespace freetoken
