#include "sim/shared_memory.h"

#include <algorithm>

namespace freetoken::sim {
namespace {

// As a float NaN, as an integer negative and not -1.
constexpr uint32_t kNonsense = 0xFFA5A5A5u;

void fill_with_nonsense(uint8_t* begin, size_t bytes) {
    auto* words = reinterpret_cast<uint32_t*>(begin);
    std::fill_n(words, (bytes + 3) / 4, kNonsense);
}

bool is_nonsense(const uint8_t* begin, size_t bytes) {
    const auto* words = reinterpret_cast<const uint32_t*>(begin);
    return std::all_of(words, words + bytes / 4, [](uint32_t word) { return word == kNonsense; });
}

size_t round_up_4(size_t bytes) {
    return (bytes + 3) / 4 * 4;
}

}  // namespace

SharedMemory::SharedMemory() : mapping_(kPlaces * kRegion + kDynamicBytes + kMargin) {
    fill_with_nonsense(mapping_.data(), mapping_.bytes());
}

void* SharedMemory::find(const void* key, size_t bytes) {
    for (size_t i = 0; i < kPlaces; ++i) {
        const void* seen = places_[i].key.load(std::memory_order_relaxed);
        if (seen == nullptr && bytes <= kStaticBytes &&
            places_[i].key.compare_exchange_strong(seen, key, std::memory_order_relaxed)) {
            places_[i].bytes.store(bytes, std::memory_order_relaxed);
            seen = key;
        }
        if (seen == key) return mapping_.data() + i * kRegion;
    }
    return nullptr;
}

bool SharedMemory::holds(const void* address) const {
    const auto* byte = static_cast<const uint8_t*>(address);
    return byte >= mapping_.data() && byte < mapping_.data() + mapping_.bytes();
}

std::string SharedMemory::finish(size_t dynamic_bytes) {
    std::string wrong;
    size_t total = 0;
    for (size_t i = 0; i < kPlaces && places_[i].key.load(std::memory_order_relaxed) != nullptr; ++i) {
        uint8_t* region = mapping_.data() + i * kRegion;
        const size_t bytes = round_up_4(places_[i].bytes.load(std::memory_order_relaxed));
        total += bytes;
        if (!is_nonsense(region + bytes, kMargin)) wrong = "wrote beyond the end of a shared array";
        fill_with_nonsense(region, bytes + kMargin);
        places_[i].key.store(nullptr, std::memory_order_relaxed);
    }
    if (total > kStaticBytes) wrong = "has " + std::to_string(total) + " bytes of static shared memory";
    if (dynamic_bytes > 0) {
        auto* region = static_cast<uint8_t*>(dynamic());
        if (!is_nonsense(region + round_up_4(dynamic_bytes), kMargin)) wrong = "wrote beyond its dynamic shared memory";
        fill_with_nonsense(region, round_up_4(dynamic_bytes) + kMargin);
    }
    return wrong;
}

}  // namespace freetoken::sim
