// Order of work inside one gemm call, shared by the vector kernels.
#pragma once

#include "kernels/activations.h"
#include "kernels/kernels.h"

namespace freetoken {

// One tile against a group of tokens.
struct TileJob {
    const uint8_t* tile;
    int cols;
    int rows;          // rows of this tile that exist, 1..16
    bool from_memory;  // the first group that meets this tile: worth fetching ahead
    const uint8_t* const* x;
    float* y;  // row 0 of this tile, token 0 of the group
    size_t ldy;
};

// Fetching ahead. The hardware keeps up with a stream of loads that come as fast as memory allows (one or two tokens),
// where any hint costs a tenth, on small pages too; it loses the stream when arithmetic slows the loads down. `far`
// asks for 8 KiB ahead into the second cache, which leaves the first one to the activations and measures best; `near`
// asks for 4 KiB ahead into the first, better for f32 alone. A first group runs into the next tile by as much.
enum class Fetch { none, near, far };

template <Fetch F>
[[gnu::always_inline]] static inline void fetch_ahead([[maybe_unused]] const uint8_t* p, [[maybe_unused]] int bytes) {
#pragma GCC unroll 8
    for (int i = 0; i < bytes; i += 64) {
        if constexpr (F == Fetch::near) __builtin_prefetch(p + 4096 + i, 0, 3);
        if constexpr (F == Fetch::far) __builtin_prefetch(p + 8192 + i, 0, 2);
    }
}

// Walks the blocks of an integer-coded tile in order: group(header) where a group opens, block(scales, codes, b) for
// each of its blocks, segment_end(s) after each of the four segments. `scales` is the block's own part of the header;
// where a header has several lines, the first is what the group shares, and the others are the blocks'.
template <Codec C, Fetch F, class Group, class Block, class SegmentEnd>
[[gnu::always_inline]] static inline void walk_blocks(const TileJob& job, Group group, Block block,
                                                      SegmentEnd segment_end) {
    constexpr CodecInfo info = codec_info(C);
    constexpr int header_bytes = info.header_lines * kScaleLine;
    constexpr int shared_bytes = info.header_lines > 1 ? kScaleLine : 0;
    constexpr int code_bytes = info.code_bytes * kTileRows;
    const int blocks = job.cols / kBlock;
    const uint8_t* p = job.tile + (info.row_line ? kScaleLine : 0);
    const uint8_t* scales = p;
    int left_in_group = 0;
    int b = 0;
    for (int segment = 0; segment < 4; ++segment) {
        for (const int end = segment_begin(segment + 1, blocks); b < end; ++b) {
            if (left_in_group == 0) {
                group(p);
                fetch_ahead<F>(p, header_bytes);
                scales = p + shared_bytes;
                p += header_bytes;
                left_in_group = info.group_blocks;
            }
            fetch_ahead<F>(p, code_bytes);
            block(scales, p, b);
            scales += info.scale_bytes * kTileRows;
            p += code_bytes;
            --left_in_group;
        }
        segment_end(segment);
    }
}

// The same for codecs whose groups share nothing.
template <Codec C, Fetch F, class Block, class SegmentEnd>
[[gnu::always_inline]] static inline void walk_blocks(const TileJob& job, Block block, SegmentEnd segment_end) {
    walk_blocks<C, F>(job, [](const uint8_t*) {}, block, segment_end);
}

// Walks the blocks of a tile of scaled floats in order: block(scales, codes, k, columns), k being the block's first
// column. The last block may be shorter, but has a multiple of kFloatColumns columns. The callee fetches codes ahead.
template <Codec C, Fetch F, class Block>
[[gnu::always_inline]] static inline void walk_scaled_blocks(const TileJob& job, Block block) {
    constexpr CodecInfo info = codec_info(C);
    constexpr int column_bytes = info.code_bytes * kTileRows / info.block;
    const int cols = static_cast<int>(padded_cols(C, job.cols));
    const uint8_t* p = job.tile;
    const uint8_t* scales = p;
    int left_in_group = 0;
    for (int k = 0; k < cols; k += info.block) {
        if (left_in_group == 0) {
            fetch_ahead<F>(p, kScaleLine);
            scales = p;
            p += kScaleLine;
            left_in_group = info.group_blocks;
        }
        const int columns = cols - k < info.block ? cols - k : info.block;
        block(scales, p, k, columns);
        scales += info.scale_bytes * kTileRows;
        p += columns * column_bytes;
        --left_in_group;
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
            const int groups = (end - begin + Kernel::kGroup - 1) / Kernel::kGroup;
            for (int tile = tile_begin; tile < tile_end; ++tile) {
                const int row = tile * kTileRows;
                const int rows = m.rows - row < kTileRows ? m.rows - row : kTileRows;
                const uint8_t* data = m.data + static_cast<size_t>(tile) * bytes;
                for (int g = 0; g < groups; ++g) {
                    // Groups of nearly equal size: eight tokens go better as 4 + 4 than as 6 + 2.
                    const int first = begin + (end - begin) * g / groups;
                    const int count = begin + (end - begin) * (g + 1) / groups - first;
                    const uint8_t* pointers[Kernel::kGroup];
                    for (int i = 0; i < count; ++i) pointers[i] = x.row(first + i);
                    run_group<Kernel::kGroup>(count,
                                              {data, m.cols, rows, g == 0, pointers,
                                               y + static_cast<size_t>(first) * ldy + static_cast<size_t>(row), ldy});
                }
            }
        }
    }
};

// Runs the one of `Kernels` that is for the matrix's codec.
template <class... Kernels>
void gemm_by_codec(const PackedMatrix& m, int tile_begin, int tile_end, const Activations& x, int tokens, float* y,
                   size_t ldy) {
    const auto run_if = [&]<class Kernel>() {
        if (m.codec == Kernel::kCodec) Driver<Kernel>::gemm(m, tile_begin, tile_end, x, tokens, y, ldy);
    };
    (run_if.template operator()<Kernels>(), ...);
}

}  // namespace freetoken
