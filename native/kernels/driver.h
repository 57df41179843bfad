// Order of work inside one gemm call, shared by the vector kernels.
#pragma once

#include "kernels/activations.h"
#include "kernels/kernels.h"

namespace freetoken {

// One tile against a group of tokens.
struct TileJob {
    const uint8_t* tile;
    size_t tile_bytes;   // also the distance to the next tile
    int cols;
    int rows;            // rows of this tile that exist, 1..16
    bool prefetch_next;  // fetch the next tile while this one is used
    const uint8_t* const* x;
    float* y;            // row 0 of this tile, token 0 of the group
    size_t ldy;
};

// Walks the blocks of an integer-coded tile in order: block(scales, codes, b) for each, segment_end(s) after each of
// the four segments.
template <Codec C, bool Prefetch, class Block, class SegmentEnd>
[[gnu::always_inline]] static inline void walk_blocks(const TileJob& job, Block block, SegmentEnd segment_end) {
    constexpr CodecInfo info = codec_info(C);
    constexpr int code_bytes = info.code_bytes * kTileRows;
    const int blocks = job.cols / kBlock;
    const uint8_t* p = job.tile;
    const uint8_t* scales = p;
    int left_in_group = 0;
    int b = 0;
    for (int segment = 0; segment < 4; ++segment) {
        for (const int end = segment_begin(segment + 1, blocks); b < end; ++b) {
            if (left_in_group == 0) {
                scales = p;
                p += kScaleLine;
                left_in_group = info.group_blocks;
                if constexpr (Prefetch) __builtin_prefetch(scales + job.tile_bytes);
            }
            if constexpr (Prefetch) {
#pragma GCC unroll 8
                for (int i = 0; i < code_bytes; i += 64) __builtin_prefetch(p + job.tile_bytes + i);
            }
            block(scales, p, b);
            scales += info.scale_bytes * kTileRows;
            p += code_bytes;
            --left_in_group;
        }
        segment_end(segment);
    }
}

inline constexpr size_t kTokenCacheBytes = 384 << 10;  // activations that should stay in the second cache

// Runs Kernel::run<T>(job), T tokens in registers, over all tiles and tokens: tokens in chunks whose packed rows fit
// the second cache, tiles in a chunk, groups of up to Kernel::kGroup tokens in a tile. A single token meets each tile
// once, so a decode step reads the matrix as one linear stream.
template <class Kernel>
struct Driver {
    template <int T>
    static void run_group(int tokens, const TileJob& job) {
        if constexpr (T > 0) {
            if (tokens == T) return Kernel::template run<T>(job);
            return run_group<T - 1>(tokens, job);
        }
    }

    static void gemm(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y,
                     size_t ldy) {
        const size_t bytes = static_cast<size_t>(tile_bytes(m.codec, m.cols));
        const size_t fit = kTokenCacheBytes / x.stride / Kernel::kGroup * Kernel::kGroup;
        const int chunk = fit < Kernel::kGroup ? Kernel::kGroup : fit > 4096 ? 4096 : static_cast<int>(fit);
        for (int begin = 0; begin < tokens; begin += chunk) {
            const int end = tokens - begin < chunk ? tokens : begin + chunk;
            for (int tile = tile_begin; tile < tile_end; ++tile) {
                const int row = tile * kTileRows;
                const int rows = m.rows - row < kTileRows ? m.rows - row : kTileRows;
                for (int t = begin; t < end; t += Kernel::kGroup) {
                    const int group = end - t < Kernel::kGroup ? end - t : Kernel::kGroup;
                    const uint8_t* pointers[Kernel::kGroup];
                    for (int i = 0; i < group; ++i) pointers[i] = x.row(t + i);
                    const bool prefetch = t == begin && group > 1 && tile + 1 < tile_end;
                    run_group<Kernel::kGroup>(
                        group, {m.data + static_cast<size_t>(tile) * bytes, bytes, m.cols, rows, prefetch, pointers,
                                y + static_cast<size_t>(t) * ldy + static_cast<size_t>(row), ldy});
                }
            }
        }
    }
};

}  // namespace freetoken
