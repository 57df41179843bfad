#include "exec/kv_cache.h"

#include <cstring>
#include <new>
#include <string>

namespace freetoken {
namespace {

constexpr int kLanes = 16;

int padded(int n) {
    return (n + kLanes - 1) / kLanes * kLanes;
}

}  // namespace

KvCache::KvCache(const std::vector<CacheSpec>& caches, int page_tokens, bool half, int pages)
    : page_tokens_(page_tokens), half_(half) {
    if (page_tokens <= 0 || page_tokens % kLanes != 0)
        throw ProgramError("a cache page must hold a multiple of 16 positions, not " + std::to_string(page_tokens));
    for (const CacheSpec& cache : caches) {
        if (cache.kv_heads <= 0 || cache.k_dim <= 0 || cache.v_dim < 0)
            throw ProgramError("a cache needs heads and values of keys");
        Layer layer;
        layer.kv_heads = cache.kv_heads;
        layer.k_dim = cache.k_dim;
        layer.v_dim = cache.v_dim;
        layer.k_stride = padded(cache.k_dim);
        layer.v_stride = padded(cache.v_dim);
        const size_t column_bytes = static_cast<size_t>(page_tokens) * value_bytes();
        layer.k_bytes = static_cast<size_t>(layer.k_stride) * column_bytes;
        layer.v_bytes = static_cast<size_t>(layer.v_stride) * column_bytes;
        layer.page_bytes = static_cast<size_t>(cache.kv_heads) * (layer.k_bytes + layer.v_bytes);
        layer.memory = Mapping(0, true);
        layers_.push_back(std::move(layer));
    }
    resize(pages);
}

void KvCache::resize(int pages) {
    if (pages < 0) throw ProgramError("a cache cannot have " + std::to_string(pages) + " pages");
    size_t done = 0;
    try {
        for (; done < layers_.size(); ++done) {
            size_t bytes = 0;
            if (__builtin_mul_overflow(static_cast<size_t>(pages), layers_[done].page_bytes, &bytes))
                throw std::bad_alloc();
            layers_[done].memory.resize(bytes);
        }
    } catch (const std::bad_alloc&) {
        // Only growing can fail, and giving the growth back cannot.
        for (size_t i = 0; i < done; ++i) layers_[i].memory.resize(static_cast<size_t>(pages_) * layers_[i].page_bytes);
        throw;
    }
    pages_ = pages;
}

void KvCache::copy_page(int source, int target) {
    for (const int page : {source, target}) {
        if (page < 0 || page >= pages_)
            throw std::out_of_range("there is no page " + std::to_string(page) + " among " + std::to_string(pages_));
    }
    if (source == target) return;
    for (const Layer& layer : layers_) std::memcpy(layer.keys(0, target), layer.keys(0, source), layer.page_bytes);
}

size_t KvCache::page_bytes() const {
    size_t bytes = 0;
    for (const Layer& layer : layers_) bytes += layer.page_bytes;
    return bytes;
}

}  // namespace freetoken
