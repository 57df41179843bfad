// AVX-512 (F, BW, VL, DQ, VBMI, VNNI): packing of activations, gated units, the bandwidth yardstick, and the table.
#include <cstring>

#include "kernels/activations.h"
#include "kernels/avx512/avx512.h"
#include "kernels/avx512/simd.h"
#include "kernels/glu.h"
#include "kernels/tables.h"

namespace freetoken::avx512 {
namespace {

size_t activation_bytes(ActivationForm form, int cols) {
    const size_t n = static_cast<size_t>(cols);
    if (form == ActivationForm::q16) return round_up_64((n + kBlock - 1) / kBlock * sizeof(SummedBlock));
    return form == ActivationForm::scaled ? scaled_row_bytes(cols) : plain_row_bytes(cols);
}

void quantise_block(__m512 first, __m512 second, SummedBlock* summed) {
    QuantBlock* out = &summed->block;
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    // As integers, magnitudes order finite < Inf < NaN.
    const uint32_t largest_bits =
        _mm512_reduce_max_epu32(_mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(first), magnitude),
                                                 _mm512_and_si512(_mm512_castps_si512(second), magnitude)));
    const float largest = float_of(largest_bits);
    const bool finite = largest_bits < 0x7F800000u;
    if (!finite || largest < kTinyBlock) {
        std::memset(summed, 0, sizeof *summed);
        if (!finite) out->scale = float_of(kCanonicalNan);
        return;
    }
    out->scale = largest / static_cast<float>(kQuantMax);
    const __m512 inverse = _mm512_set1_ps(static_cast<float>(kQuantMax) / largest);
    const __m512i q0 = _mm512_cvtps_epi32(_mm512_mul_ps(first, inverse));
    const __m512i q1 = _mm512_cvtps_epi32(_mm512_mul_ps(second, inverse));
    set_sums(*out, _mm512_reduce_add_epi32(q0), _mm512_reduce_add_epi32(q1));
    // q = 256 hi + lo with lo signed: hi is (q + 128) >> 8, lo the low byte.
    const __m512i half = _mm512_set1_epi32(128);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out->hi),
                     _mm512_cvtepi32_epi8(_mm512_srai_epi32(_mm512_add_epi32(q0, half), 8)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out->hi + 16),
                     _mm512_cvtepi32_epi8(_mm512_srai_epi32(_mm512_add_epi32(q1, half), 8)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out->lo), _mm512_cvtepi32_epi8(q0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out->lo + 16), _mm512_cvtepi32_epi8(q1));
    summed->halves = half_sums(*out);
}

void pack_plain(const float* x, int cols, uint8_t* out) {
    const size_t used = static_cast<size_t>(cols) * sizeof(float);
    std::memcpy(out, x, used);
    std::memset(out + used, 0, plain_row_bytes(cols) - used);
}

void pack_scaled(const float* x, int cols, uint8_t* out) {
    pack_plain(x, cols, out);
    const size_t bytes = plain_row_bytes(cols);
    int32_t finite = 1;
    for (size_t offset = 0; offset < bytes; offset += sizeof(__m512)) {
        const __m512 enlarged = _mm512_mul_ps(_mm512_loadu_ps(out + offset), _mm512_set1_ps(0x1p112f));
        if (_mm512_fpclass_ps_mask(enlarged, 0x99) != 0) finite = 0;  // infinities and NaNs
        _mm512_storeu_ps(out + bytes + offset, enlarged);
    }
    std::memset(out + 2 * bytes, 0, 64);
    std::memcpy(out + 2 * bytes, &finite, sizeof finite);
}

void pack_activations(ActivationForm form, const float* x, int cols, uint8_t* out) {
    if (form == ActivationForm::f32) return pack_plain(x, cols, out);
    if (form == ActivationForm::scaled) return pack_scaled(x, cols, out);
    for (int k = 0; k < cols; k += kBlock, out += sizeof(SummedBlock)) {
        const int n = cols - k < kBlock ? cols - k : kBlock;
        const __mmask16 first = lane_mask(n < 16 ? n : 16);
        const __mmask16 second = lane_mask(n < 16 ? 0 : n - 16);
        quantise_block(_mm512_maskz_loadu_ps(first, x + k), _mm512_maskz_loadu_ps(second, x + k + 16),
                       reinterpret_cast<SummedBlock*>(out));
    }
}

uint64_t read(const uint8_t* data, size_t bytes) {
    __m512i digest[4] = {};
    for (size_t i = 0; i < bytes; i += 256)
        for (size_t j = 0; j < 4; ++j) digest[j] = _mm512_xor_si512(digest[j], _mm512_loadu_si512(data + i + 64 * j));
    alignas(64) uint64_t words[8];
    _mm512_store_si512(
        words, _mm512_xor_si512(_mm512_xor_si512(digest[0], digest[1]), _mm512_xor_si512(digest[2], digest[3])));
    uint64_t all = 0;
    for (const uint64_t w : words) all ^= w;
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
}  // namespace freetoken::avx512

namespace freetoken {

const Kernels kAvx512Kernels = {
    "avx512", avx512::activation_bytes, avx512::pack_activations, avx512::gemm, glu_rows, glu_tiles, avx512::read};

}  // namespace freetoken
