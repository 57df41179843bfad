// Floating-point mode of the calling thread for as long as the object lives.
#pragma once

#include <cstdint>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <cfenv>
#endif

namespace freetoken {

// Round to nearest even, no flush to zero, exceptions masked. A library built with -Ofast turns on flush to zero when
// it is loaded, and new threads inherit it: every job that computes holds one of these.
class FloatMode {
public:
#if defined(__x86_64__)
    FloatMode() : saved_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(0x1F80); }
    ~FloatMode() { __builtin_ia32_ldmxcsr(saved_); }
#elif defined(__aarch64__)
    FloatMode() {
        asm volatile("mrs %0, fpcr" : "=r"(saved_));
        asm volatile("msr fpcr, %0" ::"r"(uint64_t{0}));
    }
    ~FloatMode() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }
#else
    FloatMode() {
        std::fegetenv(&saved_);
        std::fesetenv(FE_DFL_ENV);
    }
    ~FloatMode() { std::fesetenv(&saved_); }
#endif
    FloatMode(const FloatMode&) = delete;
    FloatMode& operator=(const FloatMode&) = delete;

private:
#if defined(__x86_64__)
    uint32_t saved_;
#elif defined(__aarch64__)
    uint64_t saved_;
#else
    std::fenv_t saved_;
#endif
};

}  // namespace freetoken
