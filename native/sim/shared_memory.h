// Shared memory of the block that runs on one thread of the emulator. Every declaration gets a region of its own, found
// by its key; regions start out as nonsense, and what was written beyond their end is noticed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "exec/memory.h"

namespace freetoken::sim {

class SharedMemory {
public:
    static constexpr size_t kStaticBytes = 48 * 1024;    // of all declarations of a kernel, as NVRTC allows
    static constexpr size_t kDynamicBytes = 227 * 1024;  // the most that any of our targets gives

    SharedMemory();

    // The region of a declaration; several threads may ask at once, without an order between them coming of it. nullptr
    // when there is no room.
    void* find(const void* key, size_t bytes);
    void* dynamic() { return mapping_.data() + kPlaces * kRegion; }
    bool holds(const void* address) const;

    // After a block: what is wrong, or "". The next block finds nonsense everywhere.
    std::string finish(size_t dynamic_bytes);

private:
    static constexpr size_t kPlaces = 32;
    static constexpr size_t kMargin = 64;  // bytes beyond a region that must stay as they are
    static constexpr size_t kRegion = kStaticBytes + 4 * kMargin;

    struct Place {
        std::atomic<const void*> key{nullptr};
        std::atomic<size_t> bytes{0};
    };
    Mapping mapping_;
    Place places_[kPlaces];
};

}  // namespace freetoken::sim
