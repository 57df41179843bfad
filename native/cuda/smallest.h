// The smallest of many words, found by one block: a radix select, four digits of eight bits, finds how large a word may
// be, and two more reads list the places of those that are no larger. So each word is read six times, however many are
// wanted.
#pragma once

#include "cuda/device.h"

namespace freetoken {
namespace {

constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kDigitPasses = 4;
constexpr int kDigitsOfLane = kDigits / kWarp;
constexpr int kMostWarps = 32;

__device__ inline int lane_id() {
    return static_cast<int>(threadIdx.x) % kWarp;
}

__device__ inline int warp_id() {
    return static_cast<int>(threadIdx.x) / kWarp;
}

// Sum over this lane and those below it.
template <class T>
__device__ inline T inclusive_sum(T value) {
    for (unsigned distance = 1; distance < kWarp; distance *= 2) {
        const T below = __shfl_up_sync(kAllLanes, value, distance);
        if (lane_id() >= static_cast<int>(distance)) value += below;
    }
    return value;
}

__device__ inline void clear(uint32_t* words, int count) {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) words[i] = 0;
}

// Four neighbouring words, of which the first `valid` count.
struct FourWords {
    uint32_t word[4];
    int valid;
};

__device__ inline FourWords load_words(const uint32_t* words, int vector, int count) {
    if (4 * vector >= count) return {{0, 0, 0, 0}, 0};
    const uint4 four = reinterpret_cast<const uint4*>(words)[vector];
    return {{four.x, four.y, four.z, four.w}, min(count - 4 * vector, 4)};
}

// The smallest are the words below `word`, and the first `ties` of those that equal it.
struct Cut {
    uint32_t word;
    int ties;
};

// Adds up the columns of the histogram, and clears them. Every eight sums are followed by a gap: see find_digit.
__device__ inline void sum_columns(uint32_t* histogram, uint32_t* sums) {
    for (int digit = static_cast<int>(threadIdx.x); digit < kDigits; digit += static_cast<int>(blockDim.x)) {
        uint32_t sum = 0;
        for (int i = 0; i < kWarp; ++i) {
            uint32_t& column = histogram[digit * kWarp + (i + digit) % kWarp];  // each lane in a bank of its own
            sum += column;
            column = 0;
        }
        sums[digit + digit / kDigitsOfLane] = sum;
    }
}

// The digit of the word that is number `wanted` (from 1) in ascending order; `wanted` becomes its number among those
// with that digit. Every warp finds it for itself, which saves a barrier; the gaps put the lanes' reads into different
// banks.
__device__ inline uint32_t find_digit(const uint32_t* sums, int& wanted) {
    int sum_to[kDigitsOfLane];
    int sum = 0;
    for (int i = 0; i < kDigitsOfLane; ++i) {
        sum += static_cast<int>(sums[lane_id() * (kDigitsOfLane + 1) + i]);
        sum_to[i] = sum;
    }
    const int before = inclusive_sum(sum) - sum;
    int below = before;
    int digit = lane_id() * kDigitsOfLane;
    for (int i = 0; i < kDigitsOfLane; ++i) {
        const bool past = before + sum_to[i] < wanted;
        below = past ? before + sum_to[i] : below;
        digit += static_cast<int>(past);
    }
    const bool here = before < wanted && wanted <= before + sum;
    const int source = __ffs(static_cast<int>(__ballot_sync(kAllLanes, here))) - 1;
    wanted -= __shfl_sync(kAllLanes, below, source);
    return static_cast<uint32_t>(__shfl_sync(kAllLanes, digit, source));
}

// Finds where the `number` smallest of `count` words end; there are so many. Every word adds to the histogram, if only 0,
// in every pass. The histogram, a column for each lane, is cleared, and is again afterwards.
__device__ Cut find_cut(const uint32_t* words, int count, int number, uint32_t* histogram, uint32_t* sums) {
    uint32_t prefix = 0;
    int wanted = number;
    for (int pass = kDigitPasses - 1; pass >= 0; --pass) {
        const int shift = pass * kDigitBits;
        for (int vector = static_cast<int>(threadIdx.x); 4 * vector < count; vector += static_cast<int>(blockDim.x)) {
            const FourWords four = load_words(words, vector, count);
            for (int i = 0; i < 4; ++i) {
                const uint32_t upper = four.word[i] >> shift;
                const unsigned counts = unsigned{i < four.valid} & unsigned{upper >> kDigitBits == prefix};
                atomicAdd(&histogram[upper % kDigits * kWarp + static_cast<uint32_t>(lane_id())], counts);
            }
        }
        __syncthreads();
        sum_columns(histogram, sums);
        __syncthreads();
        prefix = prefix << kDigitBits | find_digit(sums, wanted);
    }
    return {prefix, wanted};
}

// Words below the cut in the lower half, words at the cut in the upper half: counted and added up together. Without
// branches, as is what follows: how many words lie below the cut shall cost nothing.
__device__ inline uint64_t tally(const FourWords& four, int i, const Cut& cut) {
    const unsigned valid = i < four.valid;
    const unsigned below = valid & (four.word[i] < cut.word);
    const unsigned at = valid & (four.word[i] == cut.word);
    return uint64_t{at} << 32 | below;
}

__device__ inline int below_cut(uint64_t tally) {
    return static_cast<int>(static_cast<uint32_t>(tally));
}

__device__ inline int at_cut(uint64_t tally) {
    return static_cast<int>(tally >> 32);
}

// Lists the places of the smallest in ascending order. Each warp has a run of the words: it counts, learns what the warps
// before it counted, and writes.
__device__ void list_smallest(const uint32_t* words, int count, const Cut& cut, uint64_t* warp_tallies,
                             int32_t* places) {
    const int warps = static_cast<int>(blockDim.x) / kWarp;
    const int words_a_round = 4 * kWarp;
    const int rounds = (count + warps * words_a_round - 1) / (warps * words_a_round);
    const int first_vector = warp_id() * rounds * kWarp + lane_id();

    uint64_t mine = 0;
    for (int round = 0; round < rounds; ++round) {
        const FourWords four = load_words(words, first_vector + round * kWarp, count);
        for (int i = 0; i < 4; ++i) mine += tally(four, i, cut);
    }
    const uint64_t counted = inclusive_sum(mine);
    if (lane_id() == kWarp - 1) warp_tallies[warp_id()] = counted;
    __syncthreads();

    const uint64_t of_warp = lane_id() < warps ? warp_tallies[lane_id()] : 0;
    uint64_t before = __shfl_sync(kAllLanes, inclusive_sum(of_warp) - of_warp, warp_id());
    for (int round = 0; round < rounds; ++round) {
        const int vector = first_vector + round * kWarp;
        const FourWords four = load_words(words, vector, count);
        uint64_t own = 0;
        for (int i = 0; i < 4; ++i) own += tally(four, i, cut);
        const uint64_t counted_here = inclusive_sum(own);
        uint64_t at = before + counted_here - own;
        for (int i = 0; i < 4; ++i) {
            const uint64_t this_one = tally(four, i, cut);
            const int taken = below_cut(this_one) | (at_cut(this_one) & static_cast<int>(at_cut(at) < cut.ties));
            if (taken != 0) places[below_cut(at) + min(at_cut(at), cut.ties)] = 4 * vector + i;
            at += this_one;
        }
        before += __shfl_sync(kAllLanes, counted_here, kWarp - 1);
    }
}

}  // namespace
}  // namespace freetoken
