// The choice of a selection: of each row of words that an indexer's scores were turned into, the numbers of the
// smallest. Whoever writes the words makes a smaller one of a better score: engine/program/device/index_kernels.py.
#include "cuda/device.h"
#include "cuda/smallest.h"

namespace freetoken {

// A block takes one of the `sets` rows of a token, tokens from `first` on. A number stands for `block` entries, an entry
// for `every` tokens, and a row has as many numbers as a token at the end of the `longest` sequence sees, rounded up to a
// multiple of 4. `chosen` takes the numbers of the `top_k` smallest words that the token sees, ascending, the lower
// number on a tie; -1 behind them where there are fewer, whose words are not looked at. 32 to 1024 threads.
extern "C" __global__ void __launch_bounds__(1024)
    choose_smallest(const uint32_t* words, const int32_t* longest, const int32_t* positions, const int32_t* live,
                    int first, int sets, int every, int block, int top_k, int32_t* chosen, int stride) {
    SHARED(uint32_t, histogram, kDigits * kWarp);
    SHARED(uint32_t, sums, kDigits + kDigits / kDigitsOfLane);
    SHARED(uint64_t, warp_tallies, kMostWarps);

    const auto row = static_cast<int>(blockIdx.x);
    const int token = first + row / sets;
    if (token >= *live) return;
    const auto numbers_of = [&](int tokens) { return (tokens / every + block - 1) / block; };
    const int numbers = numbers_of(positions[token] + 1);
    int32_t* const out = chosen + static_cast<int64_t>(token) * stride + row % sets * top_k;
    if (numbers <= top_k) {
        for (int i = static_cast<int>(threadIdx.x); i < top_k; i += static_cast<int>(blockDim.x))
            out[i] = i < numbers ? i : -1;
        return;
    }
    clear(histogram, kDigits * kWarp);
    __syncthreads();
    const int row_words = (numbers_of(*longest) + 3) / 4 * 4;
    const uint32_t* const own = words + static_cast<int64_t>(row) * row_words;
    const Cut cut = find_cut(own, numbers, top_k, histogram, sums);
    list_smallest(own, numbers, cut, warp_tallies, out);
}

}  // namespace freetoken
