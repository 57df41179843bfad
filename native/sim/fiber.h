// Switching between stacks: a handful of instructions on x86-64 and aarch64, ucontext elsewhere. Fibers stay on the
// thread that made them.
#pragma once

#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__) && !defined(__aarch64__)
#define FREETOKEN_SIM_UCONTEXT 1
#endif
#ifdef FREETOKEN_SIM_UCONTEXT
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define FREETOKEN_SIM_ASAN 1
#endif

namespace freetoken::sim {

class Fiber {
public:
    // The next switch to this fiber calls entry(), which must not return, on the stack [bottom, bottom + bytes).
    void prepare(uint8_t* bottom, size_t bytes, void (*entry)());

    // Leaves `from`, which is running, and goes on with this one. `last`: `from` is never switched to again.
    void resume(Fiber& from, bool last = false);

    // Stacks whose fibers never returned hold nothing any more.
    static void abandon(uint8_t* bottom, size_t bytes);

private:
#ifdef FREETOKEN_SIM_UCONTEXT
    ucontext_t context_;
#else
    void* stack_pointer_ = nullptr;
#endif
#ifdef FREETOKEN_SIM_ASAN
    static void entered();
    const void* bottom_ = nullptr;  // of the stack; the main fiber learns its own when it is left
    size_t bytes_ = 0;
    void* fake_stack_ = nullptr;
    void (*entry_)() = nullptr;
#endif
};

}  // namespace freetoken::sim
