// Copies the records that `plan` chose from the host's memory into their slots, across the link.
//
// The grid is fixed when the step is captured, the number of fills known only when it runs: blocks take chunks in turn
// until there are none. A block has its whole chunk under way at once; few blocks keep a link busy and leave the other
// multiprocessors to the experts that are there already.
#include "cuda/cache_state.h"
#include "cuda/device.h"

namespace freetoken {
namespace {

constexpr uint64_t kChunkBytes = 16 * 1024;
constexpr uint32_t kVectorBytes = 16;
constexpr uint32_t kVectorsInFlight = 4;  // of a thread; a block of 256 reads a chunk in one go

// All threads of the block together. `bytes` is a multiple of 16.
__device__ inline void copy_chunk(const uint8_t* from, uint8_t* to, uint32_t bytes) {
    const uint32_t stride = blockDim.x * kVectorBytes;
    for (uint32_t at = threadIdx.x * kVectorBytes; at < bytes; at += kVectorsInFlight * stride) {
        uint4 held[kVectorsInFlight];
        for (uint32_t i = 0; i < kVectorsInFlight; ++i)
            if (at + i * stride < bytes) held[i] = load_stream(from + at + i * stride);
        for (uint32_t i = 0; i < kVectorsInFlight; ++i)
            if (at + i * stride < bytes) store_vector(to + at + i * stride, held[i]);
    }
}

}  // namespace

// shards: the addresses of the bank's shards, each of `records_per_shard` records of `record_bytes`, a multiple of 16.
// fills: (record, slot) pairs, of which counts[kCountFills] count. Any grid and block.
extern "C" __global__ void __launch_bounds__(256)
    fill(const uint64_t* shards, uint32_t records_per_shard, uint64_t record_bytes, const int32_t* fills,
         const int32_t* counts, uint8_t* slots, uint64_t slot_stride) {
    const auto chunks_a_record = static_cast<uint32_t>((record_bytes + kChunkBytes - 1) / kChunkBytes);
    const uint32_t chunks = static_cast<uint32_t>(counts[kCountFills]) * chunks_a_record;
    for (uint32_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        const uint32_t number = chunk / chunks_a_record;
        const uint64_t offset = chunk % chunks_a_record * kChunkBytes;
        const auto record = static_cast<uint32_t>(fills[2 * number]);
        const auto slot = static_cast<uint32_t>(fills[2 * number + 1]);
        const auto* shard = reinterpret_cast<const uint8_t*>(shards[record / records_per_shard]);
        copy_chunk(shard + record % records_per_shard * record_bytes + offset, slots + slot * slot_stride + offset,
                   static_cast<uint32_t>(min(kChunkBytes, record_bytes - offset)));
    }
}

}  // namespace freetoken
