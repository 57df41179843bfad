// One block of threads, emulated. A flat kernel, which has no barrier and no warp collective, is a loop; of any other
// every thread is a fiber (or, in a build with FREETOKEN_SIM_THREADS, a thread of the system, for ThreadSanitizer). The
// threads of a warp run one after the other, in shuffled order, from one stop to the next; then another warp is chosen.
//
// Stricter than a chip, on purpose: all threads of a block must reach every __syncthreads, and all lanes of a warp
// every collective. Shared memory starts out as nonsense.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace freetoken::sim {

struct Index {
    unsigned x = 0, y = 0, z = 0;
};

// Initial-exec: read by every emulated thread, so it must not cost a call.
#define FREETOKEN_SIM_LOCAL \
    extern constinit thread_local __attribute__((visibility("hidden"), tls_model("initial-exec")))
FREETOKEN_SIM_LOCAL Index threadIdx;
FREETOKEN_SIM_LOCAL Index blockIdx;
FREETOKEN_SIM_LOCAL Index blockDim;
FREETOKEN_SIM_LOCAL Index gridDim;

// A kernel broke a rule of the emulation.
class KernelError : public std::logic_error {
public:
    using std::logic_error::logic_error;
};

// Where a thread stops until others have come as far.
enum class Stop : uint8_t { none, done, barrier, syncwarp, shuffle, ballot, matrix };

inline constexpr unsigned kWarpLanes = 32;
inline constexpr int kExchangeWords = 8;
using Words = uint32_t[kExchangeWords];

// What the threads of a launch passed and did.
struct Counters {
    uint64_t barriers = 0;        // __syncthreads passed by a thread; the most of any block
    uint64_t collectives = 0;     // warp collectives, one for each warp
    uint64_t shared_atomics = 0;  // of all threads
    uint64_t global_atomics = 0;
};

// Called by emulated threads only:

// __syncthreads; the number of threads that came with `true`.
void barrier();
int barrier_count(bool predicate);

// A warp collective: every lane leaves up to eight words and gets those of all 32 lanes, valid until its next
// collective; of Stop::matrix what multiply_matrices makes of them.
const Words* exchange(Stop kind, unsigned mask, const uint32_t* words, int count);

// The block's static shared memory of a declaration, which `key` stands for; and its dynamic shared memory.
void* shared_memory(const void* key, size_t bytes);
void* dynamic_shared_memory();

void count_atomic(const void* address);

}  // namespace freetoken::sim

// Shared memory of the block: see cuda/device.h.
#define FREETOKEN_SIM_SHARED(type, name, count) \
    static const char name##_key = 0;           \
    auto& name = *static_cast<type(*)[count]>(::freetoken::sim::shared_memory(&name##_key, sizeof(type) * (count)))
