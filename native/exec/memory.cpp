#include "exec/memory.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

namespace freetoken {
namespace {

uint8_t* map(size_t bytes) {
    void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) throw std::bad_alloc();
    return static_cast<uint8_t*>(address);
}

void advise(uint8_t* data, size_t bytes, bool huge) {
#ifdef MADV_HUGEPAGE
    if (huge) madvise(data, bytes, MADV_HUGEPAGE);
#else
    (void)data, (void)bytes, (void)huge;
#endif
}

}  // namespace

Mapping::Mapping(size_t bytes, bool huge_pages) : huge_(huge_pages) {
    if (bytes == 0) return;
    data_ = map(bytes);
    bytes_ = bytes;
    advise(data_, bytes_, huge_);
}

Mapping::~Mapping() {
    if (data_ != nullptr) munmap(data_, bytes_);
}

void Mapping::resize(size_t bytes) {
    if (bytes == bytes_) return;
    if (bytes == 0 || data_ == nullptr) {
        *this = Mapping(bytes, huge_);
        return;
    }
#ifdef __linux__
    void* moved = mremap(data_, bytes_, bytes, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<uint8_t*>(moved);
    bytes_ = bytes;
    advise(data_, bytes_, huge_);
#else
    Mapping other(bytes, huge_);
    std::memcpy(other.data_, data_, bytes < bytes_ ? bytes : bytes_);
    *this = std::move(other);
#endif
}

void resize_all(const std::vector<Resize>& asked) {
    std::vector<Resize> grown;
    grown.reserve(asked.size());
    try {
        for (const Resize& resize : asked) {
            const size_t before = resize.mapping->bytes();
            if (resize.bytes <= before) continue;
            resize.mapping->resize(resize.bytes);
            grown.push_back({resize.mapping, before});
        }
    } catch (const std::bad_alloc&) {
        // Only growing can fail, and giving the growth back cannot.
        for (const Resize& resize : grown) resize.mapping->resize(resize.bytes);
        throw;
    }
    for (const Resize& resize : asked) resize.mapping->resize(resize.bytes);
}

size_t array_bytes(int count, size_t element) {
    size_t bytes = 0;
    if (count < 0 || __builtin_mul_overflow(static_cast<size_t>(count), element, &bytes)) throw std::bad_alloc();
    return bytes;
}

}  // namespace freetoken
