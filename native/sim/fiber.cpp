#include "sim/fiber.h"

#include <cstring>

#ifdef FREETOKEN_SIM_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// freetoken_switch_stack(void** save, void* load): saves what a call must keep, and the stack pointer in *save.
#if defined(__x86_64__)
asm(R"(
.text
.hidden freetoken_switch_stack
.globl freetoken_switch_stack
.type freetoken_switch_stack, @function
freetoken_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size freetoken_switch_stack, . - freetoken_switch_stack
)");
#elif defined(__aarch64__)
asm(R"(
.text
.hidden freetoken_switch_stack
.globl freetoken_switch_stack
.type freetoken_switch_stack, %function
freetoken_switch_stack:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size freetoken_switch_stack, . - freetoken_switch_stack
)");
#endif

#ifndef FREETOKEN_SIM_UCONTEXT
extern "C" void freetoken_switch_stack(void** save, void* load);
#endif

namespace freetoken::sim {

#ifdef FREETOKEN_SIM_ASAN
namespace {
thread_local Fiber* left = nullptr;      // the fiber that was left by the switch under way
thread_local Fiber* entering = nullptr;  // and the one that is entered
}  // namespace

void Fiber::entered() {
    Fiber* const self = entering;
    __sanitizer_finish_switch_fiber(nullptr, &left->bottom_, &left->bytes_);
    self->entry_();
}
#endif

void Fiber::prepare(uint8_t* bottom, size_t bytes, void (*entry)()) {
#ifdef FREETOKEN_SIM_ASAN
    bottom_ = bottom;
    bytes_ = bytes;
    fake_stack_ = nullptr;
    entry_ = entry;
    entry = &Fiber::entered;
#endif
#if defined(FREETOKEN_SIM_UCONTEXT)
    getcontext(&context_);
    context_.uc_stack.ss_sp = bottom;
    context_.uc_stack.ss_size = bytes;
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
#elif defined(__x86_64__)
    // Six registers, the entry as the return address, and above it the place of a return address that is never used:
    // a function is entered with the stack pointer 8 below a multiple of 16.
    const auto top = reinterpret_cast<uintptr_t>(bottom + bytes) & ~uintptr_t{15};
    auto* frame = reinterpret_cast<void**>(top - 64);
    std::memset(frame, 0, 64);
    frame[6] = reinterpret_cast<void*>(entry);
    stack_pointer_ = frame;
#else
    const auto top = reinterpret_cast<uintptr_t>(bottom + bytes) & ~uintptr_t{15};
    auto* frame = reinterpret_cast<void**>(top - 160);
    std::memset(frame, 0, 160);
    frame[11] = reinterpret_cast<void*>(entry);  // x30
    stack_pointer_ = frame;
#endif
}

void Fiber::resume(Fiber& from, bool last) {
#ifdef FREETOKEN_SIM_ASAN
    left = &from;
    entering = this;
    __sanitizer_start_switch_fiber(last ? nullptr : &from.fake_stack_, bottom_, bytes_);
#else
    (void)last;
#endif
#ifdef FREETOKEN_SIM_UCONTEXT
    swapcontext(&from.context_, &context_);
#else
    freetoken_switch_stack(&from.stack_pointer_, stack_pointer_);
#endif
#ifdef FREETOKEN_SIM_ASAN
    __sanitizer_finish_switch_fiber(from.fake_stack_, &left->bottom_, &left->bytes_);
#endif
}

void Fiber::abandon([[maybe_unused]] uint8_t* bottom, [[maybe_unused]] size_t bytes) {
#ifdef FREETOKEN_SIM_ASAN
    __asan_unpoison_memory_region(bottom, bytes);
#endif
}

}  // namespace freetoken::sim
