// The best few of many scored candidates that come in ascending order: the k largest scores, the lower number on a tie.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>

namespace freetoken {

// A score and a number as one key: keys compare as scores do, and equal scores by the lower number. Zeros are equal,
// and a NaN is below everything.
inline uint64_t candidate_key(float score, int number) {
    uint32_t bits = std::bit_cast<uint32_t>(score == 0.0f ? 0.0f : score);
    bits = score != score ? 0 : (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
    return uint64_t{bits} << 32 | static_cast<uint32_t>(~number);
}

// Works in memory for room(k) keys, whatever the number of candidates.
class Best {
public:
    static size_t room(int k) { return 2 * static_cast<size_t>(k) + 64; }

    Best(uint64_t* memory, int k) : keys_(memory), k_(static_cast<size_t>(k)) {}

    void add(float score, int number) {
        const uint64_t key = candidate_key(score, number);
        if (key <= least_) return;
        keys_[count_++] = key;
        if (count_ == room(static_cast<int>(k_))) keep_best();
    }

    // The numbers of the best, ascending. There have been at least k candidates.
    void numbers(int32_t* out) {
        keep_best();
        for (size_t i = 0; i < k_; ++i) out[i] = static_cast<int32_t>(~static_cast<uint32_t>(keys_[i]));
        std::sort(out, out + k_);
    }

private:
    void keep_best() {
        if (count_ <= k_) return;
        std::nth_element(keys_, keys_ + k_ - 1, keys_ + count_, std::greater<>());
        count_ = k_;
        least_ = keys_[k_ - 1];
    }

    uint64_t* keys_;
    size_t k_;
    size_t count_ = 0;
    uint64_t least_ = 0;  // no key is as small: numbers are not negative
};

}  // namespace freetoken
