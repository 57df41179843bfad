// Context memory: everything that an executor keeps of sequences from one step to the next, in blocks of three kinds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exec/kv_cache.h"
#include "exec/program.h"
#include "exec/state_store.h"

namespace freetoken {

enum class BlockKind : uint8_t { page, window, state };

class ContextStore {
public:
    ContextStore(const ProgramSpec& program, const Settings& settings);

    // Blocks below both counts keep their contents; kinds that the program does not use are taken for 0. Throws
    // std::bad_alloc and changes nothing, ProgramError for a negative number.
    void resize(ContextRoom room);
    ContextRoom room() const;
    // Bytes of one block; 0 for a kind that the program does not use.
    size_t block_bytes(BlockKind kind) const;

    // Each throws std::out_of_range for a block that is not there.
    void copy(BlockKind kind, int source, int target);
    // `data` holds block_bytes(kind) bytes.
    void read(BlockKind kind, int block, uint8_t* data) const;
    void write(BlockKind kind, int block, const uint8_t* data);

    KvCache& cache() { return cache_; }
    const KvCache& cache() const { return cache_; }
    StateStore& states() { return states_; }
    const StateStore& states() const { return states_; }

private:
    int blocks(BlockKind kind) const;
    std::vector<std::span<uint8_t>> block(BlockKind kind, int number) const;

    KvCache cache_;
    StateStore states_;
};

}  // namespace freetoken
