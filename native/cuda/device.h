// What every .cu file includes first. It is compiled in two worlds: for the device by NVRTC, and for this processor
// behind native/sim/emulation.h, which defines FREETOKEN_EMULATION. A kernel is
//
//     extern "C" __global__ void name(const uint32_t* p, int n, ...)    pointers, int32, uint32, uint64, float
//
// in namespace freetoken (outside, exp and fma would be ambiguous), and uses only what this header and intrinsics.h
// give: one-dimensional blocks of a multiple of 32 threads,
// __syncthreads, warp collectives of all 32 lanes (kAllLanes), atomics on 32 and 64 bits, __dp4a, and shared memory
//
//     SHARED(uint32_t, histogram, 256);     as `__shared__ uint32_t histogram[256]`, 48 KiB in all, not initialised
//     DYNAMIC_SHARED(float, row);           `float* row`, the launch's `shared` bytes, 16-byte aligned
//
// The arithmetic of docs/numerics.md holds: -fmad=false here, -ffp-contract=off there, fma() where it says fma.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef FREETOKEN_EMULATION
#define SHARED(type, name, count) FREETOKEN_SIM_SHARED(type, name, count)
#define DYNAMIC_SHARED(type, name) type* const name = static_cast<type*>(::freetoken::sim::dynamic_shared_memory())
#else
#define SHARED(type, name, count) __shared__ type name[count]
#define DYNAMIC_SHARED(type, name)             \
    extern __shared__ uint4 dynamic_shared_[]; \
    type* const name = reinterpret_cast<type*>(dynamic_shared_)
#endif

#include "core/numerics.h"
#include "cuda/intrinsics.h"

namespace freetoken {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;
inline constexpr int kWarp = 32;

}  // namespace freetoken
