// The kernels that the emulator knows, by name. SIM_KERNEL(name) after the .cu file registers one;
// SIM_KERNEL_FLAT(name) one that promises to have no barrier, no warp collective and no shared memory, and runs as a
// plain loop.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "sim/block.h"

namespace freetoken::sim {

// Numbers 0 .. count - 1 in an order that a random word chooses: steps that share no factor with the count.
class Shuffle {
public:
    Shuffle(uint32_t count, uint64_t random);
    uint32_t operator[](uint64_t i) const { return static_cast<uint32_t>((offset_ + i * step_) % count_); }
    uint32_t first() const { return offset_; }
    uint32_t after(uint32_t number) const {
        const uint64_t next = uint64_t{number} + step_;
        return static_cast<uint32_t>(next >= count_ ? next - count_ : next);
    }

private:
    uint32_t count_;
    uint32_t offset_;
    uint32_t step_;
};

struct KernelEntry {
    std::string name;
    std::string parameters;  // a letter each: p pointer, i int32, u uint32, l uint64, f float
    bool flat = false;
    void (*call)(const uint64_t* slots) = nullptr;  // one thread; not of a flat kernel
    void (*loop)(const uint64_t* slots, const Shuffle& order, unsigned threads) = nullptr;  // a flat block
};

// All kernels that are linked in, in no particular order.
const std::vector<KernelEntry>& kernels();
const KernelEntry* find_kernel(const std::string& name);

struct RegisterKernel {
    explicit RegisterKernel(KernelEntry entry);
};

template <class T>
constexpr char parameter_letter() {
    if constexpr (std::is_pointer_v<T>) {
        return 'p';
    } else if constexpr (std::is_same_v<T, float>) {
        return 'f';
    } else {
        static_assert(std::is_integral_v<T>, "kernels take pointers, floats and integers");
        static_assert(sizeof(T) == 4 || (sizeof(T) == 8 && std::is_unsigned_v<T>), "int32, uint32 or uint64");
        return sizeof(T) == 8 ? 'l' : std::is_signed_v<T> ? 'i' : 'u';
    }
}

template <class T>
T argument(uint64_t slot) {
    T value;
    std::memcpy(&value, &slot, sizeof value);
    return value;
}

template <auto Kernel, class... A>
struct KernelCalls {
    template <size_t... I>
    static void call_with(const uint64_t* slots, std::index_sequence<I...>) {
        Kernel(argument<A>(slots[I])...);
    }
    static void call(const uint64_t* slots) { call_with(slots, std::index_sequence_for<A...>{}); }

    template <size_t... I>
    [[gnu::flatten]] static void loop_with(const uint64_t* slots, const Shuffle& order, unsigned threads,
                                           std::index_sequence<I...>) {
        [[maybe_unused]] const std::tuple<A...> arguments(argument<A>(slots[I])...);
        uint32_t thread = order.first();
        for (unsigned i = 0; i < threads; ++i, thread = order.after(thread)) {
            threadIdx.x = thread;
            Kernel(std::get<I>(arguments)...);
        }
    }
    static void loop(const uint64_t* slots, const Shuffle& order, unsigned threads) {
        loop_with(slots, order, threads, std::index_sequence_for<A...>{});
    }
};

// Only the way in which it runs is compiled.
template <auto Kernel, bool Flat, class... A>
KernelEntry kernel_entry(const char* name, void (*)(A...)) {
    KernelEntry entry = {name, {parameter_letter<A>()...}, Flat, nullptr, nullptr};
    if constexpr (Flat)
        entry.loop = &KernelCalls<Kernel, A...>::loop;
    else
        entry.call = &KernelCalls<Kernel, A...>::call;
    return entry;
}

}  // namespace freetoken::sim

#define FREETOKEN_SIM_REGISTER(kernel, flat)                           \
    static const ::freetoken::sim::RegisterKernel registered_##kernel( \
        ::freetoken::sim::kernel_entry<&::freetoken::kernel, flat>(#kernel, &::freetoken::kernel))
#define SIM_KERNEL(kernel) FREETOKEN_SIM_REGISTER(kernel, false)
#define SIM_KERNEL_FLAT(kernel) FREETOKEN_SIM_REGISTER(kernel, true)
