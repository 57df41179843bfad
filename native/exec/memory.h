// Memory of the executor: anonymous mappings that cost nothing until they are written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace freetoken {

class Mapping {
public:
    Mapping() = default;
    // Zero-filled and page-aligned. Throws std::bad_alloc.
    explicit Mapping(size_t bytes, bool huge_pages = false);
    ~Mapping();
    Mapping(Mapping&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)), huge_(other.huge_) {}
    Mapping& operator=(Mapping&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        std::swap(huge_, other.huge_);
        return *this;
    }

    // Keeps the contents of the part that both sizes share; the address may change. Throws std::bad_alloc and changes
    // nothing when the address space or the system's memory does not allow it.
    void resize(size_t bytes);

    // Makes it at least this large; contents may be lost.
    void reserve(size_t bytes) {
        if (bytes > bytes_) *this = Mapping(bytes, huge_);
    }

    uint8_t* data() const { return data_; }
    float* floats() const { return reinterpret_cast<float*>(data_); }
    size_t bytes() const { return bytes_; }

private:
    uint8_t* data_ = nullptr;
    size_t bytes_ = 0;
    bool huge_ = false;
};

// One of several mappings that change their size together.
struct Resize {
    Mapping* mapping = nullptr;
    size_t bytes = 0;
};

// All or none: throws std::bad_alloc and leaves every one as it was.
void resize_all(const std::vector<Resize>& asked);

// Bytes of `count` elements. Throws std::bad_alloc where that is more than a size can say.
size_t array_bytes(int count, size_t element);

}  // namespace freetoken
