#include "exec/kv_cache.h"

#include <algorithm>
#include <string>

namespace freetoken {
namespace {

constexpr int kLanes = 16;

int padded(int n) {
    return (n + kLanes - 1) / kLanes * kLanes;
}

}  // namespace

KvCache::KvCache(const std::vector<CacheSpec>& caches, int page_tokens, bool half)
    : page_tokens_(page_tokens), half_(half) {
    if (page_tokens <= 0 || page_tokens % kLanes != 0)
        throw ProgramError("a cache page must hold a multiple of 16 positions, not " + std::to_string(page_tokens));
    for (const CacheSpec& cache : caches) {
        if (cache.kv_heads <= 0 || cache.k_dim <= 0 || cache.v_dim < 0)
            throw ProgramError("a cache needs heads and values of keys");
        if (cache.reach < 0) throw ProgramError("a cache cannot reach back " + std::to_string(cache.reach));
        if (cache.every <= 0 || (page_tokens % cache.every != 0 && cache.every % page_tokens != 0))
            throw ProgramError("pages of " + std::to_string(page_tokens) + " positions cannot hold an entry every " +
                               std::to_string(cache.every));
        if (cache.every > 1 && cache.v_dim > 0)
            throw ProgramError("entries of several tokens have no values beside their keys");
        Layer layer;
        layer.group = cache.reach > 0 ? PageGroup::window : PageGroup::whole;
        layer.kv_heads = cache.kv_heads;
        layer.k_dim = cache.k_dim;
        layer.v_dim = cache.v_dim;
        layer.every = cache.every;
        layer.k_stride = padded(cache.k_dim);
        layer.v_stride = padded(cache.v_dim);
        const int entries = std::max(1, page_tokens / cache.every);
        const size_t column_bytes = static_cast<size_t>(entries) * value_bytes();
        layer.k_bytes = static_cast<size_t>(layer.k_stride) * column_bytes;
        layer.v_bytes = static_cast<size_t>(layer.v_stride) * column_bytes;
        layer.page_bytes = static_cast<size_t>(cache.kv_heads) * (layer.k_bytes + layer.v_bytes);
        layer.memory = Mapping(0, true);
        layers_.push_back(std::move(layer));
    }
}

void KvCache::ask(PageGroup group, int pages, std::vector<Resize>& asked) {
    for (Layer& layer : layers_) {
        if (layer.group == group) asked.push_back({&layer.memory, array_bytes(pages, layer.page_bytes)});
    }
}

std::vector<std::span<uint8_t>> KvCache::block(PageGroup group, int page) const {
    std::vector<std::span<uint8_t>> parts;
    for (const Layer& layer : layers_) {
        if (layer.group == group) parts.emplace_back(layer.keys(0, page), layer.page_bytes);
    }
    return parts;
}

bool KvCache::uses(PageGroup group) const {
    return std::any_of(layers_.begin(), layers_.end(), [&](const Layer& layer) { return layer.group == group; });
}

size_t KvCache::page_bytes(PageGroup group) const {
    size_t bytes = 0;
    for (const Layer& layer : layers_) bytes += layer.group == group ? layer.page_bytes : 0;
    return bytes;
}

}  // namespace freetoken
