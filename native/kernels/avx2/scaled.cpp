// Scaled floats by AVX2: e4m3 weights under a scale a block. Codes become columns of binary16 in a strip of memory,
// from which one instruction makes f32; out of a register the same conversion takes two, and a third to reach the upper
// half.
#include "kernels/avx2/avx2.h"
#include "kernels/avx2/columns.h"
#include "kernels/avx2/formats.h"

namespace freetoken::avx2 {
namespace {

constexpr int kColumnBytes = 2 * kTileRows;  // of binary16

template <Codec C>
Rows block_scales(const uint8_t* p) {
    if constexpr (C == Codec::mxfp8) return powers_of_two(p);
    return load_rows(p);
}

// Four columns. In the 16-bit words of a line of codes lie columns 0 and 2, then 1 and 3.
[[gnu::always_inline]] static inline void widen_line(const uint8_t* codes, uint8_t* columns) {
#pragma GCC unroll 4
    for (int s = 0; s < kFloatColumns; ++s)
        store256(columns + s * kColumnBytes, e4m3_as_halves(load256(codes + 32 * (s % 2)), s / 2));
}

template <Fetch F>
[[gnu::always_inline]] static inline void widen(const uint8_t* codes, int count, uint8_t* columns) {
    for (int k = 0; k < count; k += kFloatColumns) {
        fetch_ahead<F>(codes + k * kTileRows, kScaleLine);
        widen_line(codes + k * kTileRows, columns + k * kColumnBytes);
    }
}

template <Codec C>
struct ScaledKernel {
    static constexpr Codec kCodec = C;
    static constexpr CodecInfo kInfo = codec_info(C);
    static constexpr int kGroup = 6;

    // One token goes from strip to strip, whatever the blocks: a header every 128 columns is all there is between
    // codes. The next strip is widened line by line while this one is multiplied, the stores of the one beside the
    // loads of the other.
    static void run_one(const TileJob& job) {
        constexpr int kStrip = 32;
        constexpr int kHeaderColumns = kInfo.block * kInfo.group_blocks;
        static_assert(kInfo.block % kStrip == 0);
        const int cols = static_cast<int>(padded_cols(C, job.cols));
        const auto width = [&](int k) { return cols - k < kStrip ? cols - k : kStrip; };
        const auto header = [&](int k) {
            return job.tile + k / kHeaderColumns * (kScaleLine + kHeaderColumns * kTileRows);
        };
        const auto codes = [&](int k) { return header(k) + kScaleLine + k % kHeaderColumns * kTileRows; };
        alignas(64) uint8_t columns[2][kStrip * kColumnBytes];
        Rows acc = {};
        ColumnSums<1> sums = {};
        widen<Fetch::none>(codes(0), width(0), columns[0]);
        for (int k = 0; k < cols; k += kStrip) {
            const uint8_t* now = columns[k / kStrip % 2];
            uint8_t* next = columns[1 - k / kStrip % 2];
            const uint8_t* const x[1] = {job.x[0] + static_cast<size_t>(k) * sizeof(float)};
            if (k + 2 * kStrip <= cols) {
                const uint8_t* next_codes = codes(k + kStrip);
                // Its header is wanted later, but the hardware's stream of lines likes it in order.
                if ((k + kStrip) % kHeaderColumns == 0) __builtin_prefetch(header(k + kStrip));
#pragma GCC unroll 8
                for (int i = 0; i < kStrip; i += kFloatColumns) {
                    widen_line(next_codes + i * kTileRows, next + i * kColumnBytes);
                    const uint8_t* const values[1] = {x[0] + static_cast<size_t>(i) * sizeof(float)};
                    add_columns<Codec::f16, 1, Fetch::none>(now + i * kColumnBytes, values, kFloatColumns, sums);
                }
            } else {
                if (k + kStrip < cols) widen<Fetch::none>(codes(k + kStrip), width(k + kStrip), next);
                add_columns<Codec::f16, 1, Fetch::none>(now, x, width(k), sums);
            }
            if ((k + kStrip) % kInfo.block == 0 || k + kStrip >= cols) {
                const int block = k % kHeaderColumns / kInfo.block;
                const Rows scale = block_scales<C>(header(k) + block * kInfo.scale_bytes * kTileRows);
                acc = fma(scale, total(sums[0]), acc);
#pragma GCC unroll 4
                for (Rows& sum : sums[0]) sum = broadcast(0.0f);
            }
        }
        store_rows(job, 0, acc * broadcast(kInfo.post));
    }

    // A group of tokens goes from block to block.
    template <int T, Fetch F>
    static void run_group(const TileJob& job) {
        alignas(64) uint8_t columns[kInfo.block * kColumnBytes];
        Rows acc[T] = {};
        walk_scaled_blocks<C, F>(job, [&](const uint8_t* scales, const uint8_t* codes, int k, int count) {
            widen<F>(codes, count, columns);
            const uint8_t* x[T];
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) x[t] = job.x[t] + static_cast<size_t>(k) * sizeof(float);
            ColumnSums<T> sums = {};
            add_columns<Codec::f16, T, Fetch::none>(columns, x, count, sums);
            const Rows scale = block_scales<C>(scales);
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) acc[t] = fma(scale, total(sums[t]), acc[t]);
        });
        for (int t = 0; t < T; ++t) store_rows(job, t, acc[t] * broadcast(kInfo.post));
    }

    template <int T>
    static void run(const TileJob& job) {
        if constexpr (T == 1)
            run_one(job);
        else if (job.from_memory)
            run_group<T, Fetch::far>(job);
        else
            run_group<T, Fetch::none>(job);
    }
};

}  // namespace

void scaled_gemm(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y,
                 size_t ldy) {
    gemm_by_codec<ScaledKernel<Codec::fp8>, ScaledKernel<Codec::mxfp8>>(m, tile_begin, tile_end, x, tokens, y, ldy);
}

}  // namespace freetoken::avx2
