// Reading and writing numbers in bytes that need not be aligned. Internal linkage: see numerics.h.
#pragma once

#include <cstdint>
#include <cstring>

namespace freetoken {

template <class T>
static inline T load(const uint8_t* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

template <class T>
static inline void store(uint8_t* p, T value) {
    std::memcpy(p, &value, sizeof value);
}

}  // namespace freetoken
