// Float codecs by AVX2.
#include "kernels/avx2/avx2.h"
#include "kernels/avx2/columns.h"

namespace freetoken::avx2 {
namespace {

template <Codec C>
struct FloatKernel {
    static constexpr Codec kCodec = C;
    static constexpr Fetch kFetch = Fetch::far;
    static constexpr int kGroup = 6;
    static constexpr int kColumnBytes = codec_info(C).code_bytes * kTileRows;

    // A group of tokens goes through the tile strip by strip, so that it finds the strip in cache when it comes again.
    template <int T, Fetch F>
    static void run_tile(const TileJob& job) {
        const int cols = static_cast<int>(padded_cols(C, job.cols));
        const int strip = T == 1 ? cols : 64;
        ColumnSums<T> sums = {};
        for (int begin = 0; begin < cols; begin += strip) {
            const uint8_t* x[T];
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) x[t] = job.x[t] + static_cast<size_t>(begin) * sizeof(float);
            add_columns<C, T, F>(job.tile + static_cast<size_t>(begin) * kColumnBytes, x,
                                 cols - begin < strip ? cols - begin : strip, sums);
        }
        for (int t = 0; t < T; ++t) store_rows(job, t, total(sums[t]));
    }

    template <int T>
    static void run(const TileJob& job) {
        if (T > 1 && job.from_memory) return run_tile<T, kFetch>(job);
        run_tile<T, Fetch::none>(job);
    }
};

}  // namespace

void float_gemm(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y,
                size_t ldy) {
    gemm_by_codec<FloatKernel<Codec::f32>, FloatKernel<Codec::f16>, FloatKernel<Codec::bf16>>(m, tile_begin, tile_end,
                                                                                              x, tokens, y, ldy);
}

}  // namespace freetoken::avx2
