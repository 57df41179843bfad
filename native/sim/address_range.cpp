#include "sim/address_range.h"

#include <sys/mman.h>

#include <chrono>
#include <new>
#include <thread>

namespace freetoken::sim {

AddressRange::AddressRange(size_t bytes) : bytes_(bytes) {
    void* data = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<uint8_t*>(data);
    madvise(data_, bytes, MADV_HUGEPAGE);
}

AddressRange::~AddressRange() {
    munmap(data_, bytes_);
}

void AddressRange::map(size_t bytes) {
    if (bytes > bytes_) throw std::bad_alloc();
    if (bytes > mapped_) {
        if (mprotect(data_ + mapped_, bytes - mapped_, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
    } else if (bytes < mapped_) {
        // Mapped anew, for the pages to be given back and the addresses to be refused.
        void* again = mmap(data_ + bytes, mapped_ - bytes, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        if (again == MAP_FAILED) throw std::bad_alloc();
        madvise(again, mapped_ - bytes, MADV_HUGEPAGE);
    }
    mapped_ = bytes;
}

void store_word(uint32_t* address, uint32_t value) {
    __atomic_store_n(address, value, __ATOMIC_RELEASE);
}

bool wait_word(const uint32_t* address, uint32_t value, double seconds) {
    using Clock = std::chrono::steady_clock;
    constexpr int kSpins = 2000;
    constexpr auto kNap = std::chrono::microseconds(20);
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    for (int spin = 0;; ++spin) {
        if (__atomic_load_n(address, __ATOMIC_ACQUIRE) == value) return true;
        if (spin < kSpins) continue;
        if (Clock::now() >= end) return false;
        std::this_thread::sleep_for(kNap);
    }
}

}  // namespace freetoken::sim
