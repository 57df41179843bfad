// Keys and values of every attention layer, in pages of `page_tokens` positions. A layer's page holds the keys of each
// kv head and then the values of each, so that one head's positions in a page are read as one stream. Values lie by
// positions. Keys lie sixteen positions side by side, [k_stride][16] for each sixteen, so that their scores are found
// side by side; keys whose first columns are the values lie by positions, too.
//
// Layers are of two groups, whose pages are numbered by themselves: those that keep everything, and those that reach
// back only so far and give up pages behind.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "exec/memory.h"
#include "exec/program.h"

namespace freetoken {

enum class PageGroup : uint8_t { whole, window };

class KvCache {
public:
    struct Layer {
        PageGroup group = PageGroup::whole;
        int kv_heads = 0;
        int k_dim = 0;
        int v_dim = 0;
        int every = 1;       // tokens that one entry stands for
        int k_stride = 0;    // values of a position: k_dim rounded up to 16
        int v_stride = 0;    // of the cached values; 0 where they are columns of the keys
        size_t k_bytes = 0;  // of one head's keys in a page
        size_t v_bytes = 0;  // of one head's values in a page
        size_t page_bytes = 0;
        Mapping memory;

        // Values are columns of the keys.
        bool latent() const { return v_dim == 0; }

        // Start of a head's keys (values) in a page.
        uint8_t* keys(int head, int page) const {
            return memory.data() + static_cast<size_t>(page) * page_bytes + static_cast<size_t>(head) * k_bytes;
        }
        uint8_t* values(int head, int page) const {
            if (v_stride == 0) return keys(head, page);
            return keys(kv_heads, page) + static_cast<size_t>(head) * v_bytes;
        }
    };

    // Without a page at first.
    KvCache(const std::vector<CacheSpec>& caches, int page_tokens, bool half);

    // What a resize to so many pages of a group asks of its layers' memory. Throws std::bad_alloc for a size that no
    // memory has.
    void ask(PageGroup group, int pages, std::vector<Resize>& asked);
    // Says that the memory of a group is now of so many pages.
    void resized(PageGroup group, int pages) { pages_[static_cast<size_t>(group)] = pages; }

    // The block of a page: what it holds in each layer of its group, in order.
    std::vector<std::span<uint8_t>> block(PageGroup group, int page) const;

    bool uses(PageGroup group) const;
    int pages(PageGroup group) const { return pages_[static_cast<size_t>(group)]; }
    int page_tokens() const { return page_tokens_; }
    bool half() const { return half_; }
    size_t value_bytes() const { return half_ ? 2 : 4; }
    // Bytes of a page in all layers of its group together.
    size_t page_bytes(PageGroup group) const;
    int layers() const { return static_cast<int>(layers_.size()); }
    const Layer& layer(int index) const { return layers_[static_cast<size_t>(index)]; }

private:
    std::vector<Layer> layers_;
    int page_tokens_;
    bool half_;
    std::array<int, 2> pages_ = {};
};

}  // namespace freetoken
