// Memory of the simulated device: a run of addresses of which a prefix is there. Touching the rest is a segmentation
// fault, as it is a fault on a device.
#pragma once

#include <cstddef>
#include <cstdint>

namespace freetoken::sim {

class AddressRange {
public:
    // Addresses alone. Throws std::bad_alloc.
    explicit AddressRange(size_t bytes);
    ~AddressRange();
    AddressRange(const AddressRange&) = delete;
    AddressRange& operator=(const AddressRange&) = delete;

    // Makes the first `bytes` usable, a multiple of the page size; what is new is zero, what stays keeps its contents,
    // what leaves is given back. Throws std::bad_alloc and changes nothing where the system has no memory to give.
    void map(size_t bytes);

    uint8_t* data() const { return data_; }
    size_t bytes() const { return bytes_; }
    size_t mapped() const { return mapped_; }

private:
    uint8_t* data_ = nullptr;
    size_t bytes_ = 0;
    size_t mapped_ = 0;
};

// A word that another thread waits for or sets: release and acquire.
void store_word(uint32_t* address, uint32_t value);
// Whether it became `value` within `seconds`. Spins for a while, then naps.
bool wait_word(const uint32_t* address, uint32_t value, double seconds);

}  // namespace freetoken::sim
