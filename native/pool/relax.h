// What a thread does between two looks at a word that another thread will change.
#pragma once

namespace freetoken {

inline void relax() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace freetoken
