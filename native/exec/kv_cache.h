// Keys and values of every attention layer, in pages of `page_tokens` positions. A layer's page holds the keys of each
// kv head and then the values of each, so that one head's positions in a page are read as one stream.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/memory.h"
#include "exec/program.h"

namespace freetoken {

class KvCache {
public:
    struct Layer {
        int kv_heads = 0;
        int k_dim = 0;
        int v_dim = 0;
        int k_stride = 0;    // values between positions: k_dim rounded up to 16
        int v_stride = 0;    // of the cached values; 0 where they are columns of the keys
        size_t k_bytes = 0;  // of one head's keys in a page
        size_t v_bytes = 0;  // of one head's values in a page
        size_t page_bytes = 0;
        Mapping memory;

        // Start of a head's keys (values) in a page.
        uint8_t* keys(int head, int page) const {
            return memory.data() + static_cast<size_t>(page) * page_bytes + static_cast<size_t>(head) * k_bytes;
        }
        uint8_t* values(int head, int page) const {
            if (v_stride == 0) return keys(head, page);
            return keys(kv_heads, page) + static_cast<size_t>(head) * v_bytes;
        }
    };

    KvCache(const std::vector<CacheSpec>& caches, int page_tokens, bool half, int pages);

    // Pages below both counts keep their contents. Throws std::bad_alloc and changes nothing.
    void resize(int pages);
    // Throws std::out_of_range.
    void copy_page(int source, int target);

    int pages() const { return pages_; }
    int page_tokens() const { return page_tokens_; }
    bool half() const { return half_; }
    size_t value_bytes() const { return half_ ? 2 : 4; }
    // Bytes of a page in all layers together.
    size_t page_bytes() const;
    int layers() const { return static_cast<int>(layers_.size()); }
    const Layer& layer(int index) const { return layers_[static_cast<size_t>(index)]; }

private:
    std::vector<Layer> layers_;
    int page_tokens_;
    bool half_;
    int pages_ = 0;
};

}  // namespace freetoken
