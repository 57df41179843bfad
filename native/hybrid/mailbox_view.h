// The mailbox as the host sees it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "hybrid/mailbox.h"

namespace freetoken {

// Sizes that a mailbox is made for.
struct MailboxShape {
    int max_tokens = 0;
    int top_k = 0;
    int hidden = 0;

    MailboxLayout layout() const {
        return mailbox_layout(static_cast<uint64_t>(max_tokens), static_cast<uint64_t>(top_k),
                              static_cast<uint64_t>(hidden));
    }
};

class MailboxView {
public:
    // Borrows `memory`. Throws std::invalid_argument for a block that is too small or does not start at a line.
    MailboxView(uint8_t* memory, size_t bytes, const MailboxShape& shape) : memory_(memory), layout_(shape.layout()) {
        if (shape.max_tokens < 1 || shape.top_k < 1 || shape.hidden < 1)
            throw std::invalid_argument("a mailbox without room for a token");
        if (bytes < layout_.bytes || reinterpret_cast<uintptr_t>(memory) % alignof(MailboxHeader) != 0)
            throw std::invalid_argument("a mailbox must start at a line of 64 bytes and have its size");
    }

    using Word = std::atomic_ref<uint32_t>;
    Word request() const { return Word(header().request); }
    Word done() const { return Word(header().done); }
    Word failed() const { return Word(header().failed); }

    // Read once a request has been seen.
    uint32_t rows() const { return header().rows; }
    uint32_t top_k() const { return header().top_k; }
    const int32_t* ids() const { return reinterpret_cast<const int32_t*>(memory_ + layout_.ids); }
    float* inputs() const { return reinterpret_cast<float*>(memory_ + layout_.inputs); }
    float* outputs() const { return reinterpret_cast<float*>(memory_ + layout_.outputs); }

private:
    MailboxHeader& header() const { return *reinterpret_cast<MailboxHeader*>(memory_); }

    uint8_t* memory_;
    MailboxLayout layout_;
};

}  // namespace freetoken
