// A block of attention, bit for bit as docs/numerics.md writes it down: every instruction set, number of heads, width,
// and form of the cache. Pages lie in no order, and what is not seen is not a number.
#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "check.h"
#include "core/float_mode.h"
#include "core/numerics.h"
#include "kernels/kernels.h"
#include "ops/ops.h"
#include "random.h"

namespace freetoken {
namespace {

using Floats = std::vector<float>;

constexpr int kPage = 16;
constexpr int kFilled = 400;  // positions: more than a block
constexpr int kPages = (kFilled + kPage - 1) / kPage;

struct Case {
    int heads, queries, k_dim, v_dim;
    bool half, latent;
    Sight sight;
    float softcap;
    int kv_heads = 1;
};

int padded(int n) {
    return (n + 15) / 16 * 16;
}

float rounded(float x, bool half) {
    return half ? half_to_float(float_to_half(x)) : x;
}

// Pages, filled through `operations`; the keys and values as they are kept, by kv heads and positions.
struct Filled {
    AttentionShape shape;
    std::vector<uint8_t> memory;
    std::vector<int32_t> pages;
    Floats keys, values;
    size_t kv_heads;
    size_t key_bytes = 0;

    Filled(const Case& c, const Operations& operations) : kv_heads(static_cast<size_t>(c.kv_heads)) {
        shape.k_dim = c.k_dim;
        shape.v_dim = c.v_dim;
        shape.k_stride = padded(c.k_dim);
        shape.v_stride = padded(c.v_dim);
        shape.latent = c.latent;
        shape.half = c.half;
        shape.page_tokens = kPage;
        shape.scale = 0.31f;
        shape.softcap = c.softcap;
        shape.sight = c.sight;
        const size_t size = c.half ? 2 : 4;
        key_bytes = static_cast<size_t>(kPage * shape.k_stride) * size;
        const size_t v_row = static_cast<size_t>(shape.v_stride) * size;
        shape.k_head_bytes = key_bytes;
        shape.v_head_bytes = c.latent ? 0 : kPage * v_row;
        shape.page_bytes = static_cast<size_t>(c.kv_heads) * (key_bytes + shape.v_head_bytes);
        memory.assign(shape.page_bytes * kPages, 0xFF);
        for (int page = 0; page < kPages; ++page) pages.push_back(page * 7 % kPages);
        test::Random random(5);
        for (int head = 0; head < c.kv_heads; ++head) {
            for (int position = 0; position < kFilled; ++position) {
                Floats key(static_cast<size_t>(c.k_dim)), value(static_cast<size_t>(c.v_dim));
                for (float& x : key) x = random.normal();
                for (float& x : value) x = random.normal();
                uint8_t* page = memory.data() + static_cast<size_t>(pages[position / kPage]) * shape.page_bytes;
                uint8_t* keys_at = page + static_cast<size_t>(head) * key_bytes;
                const auto slot = static_cast<size_t>(position % kPage);
                if (c.latent) {
                    operations.store_cached(key.data(), c.k_dim, shape.k_stride, c.half,
                                            keys_at + slot * key_bytes / kPage);
                    value.assign(key.begin(), key.begin() + c.v_dim);
                } else {
                    operations.store_key(key.data(), c.k_dim, shape.k_stride, c.half, keys_at + slot * size);
                    operations.store_cached(
                        value.data(), c.v_dim, shape.v_stride, c.half,
                        values_of(page) + static_cast<size_t>(head) * shape.v_head_bytes + slot * v_row);
                }
                for (float x : key) keys.push_back(rounded(x, c.half));
                for (float x : value) values.push_back(rounded(x, c.half));
            }
        }
    }

    // The first head's, in a page.
    template <class Byte>
    Byte* values_of(Byte* page) const {
        return page + (shape.latent ? 0 : kv_heads * key_bytes);
    }
};

// m, l and o of one row, one value after another.
Floats twin(const Case& c, const Filled& filled, int kv_head, const float* q, int position, int block) {
    const int begin = std::max(block * kAttentionBlock, c.sight.oldest(position));
    const int end = std::min((block + 1) * kAttentionBlock, position + 1);
    if (begin >= end) return {-1.0f};
    const float* keys = filled.keys.data() + kv_head * kFilled * c.k_dim;
    const float* values = filled.values.data() + kv_head * kFilled * c.v_dim;
    Floats scores;
    float m = -std::numeric_limits<float>::infinity();
    for (int p = begin; p < end; ++p) {
        float score = 0.0f;
        for (int d = 0; d < c.k_dim; ++d) score = fma(q[d], keys[p * c.k_dim + d], score);
        score = score * filled.shape.scale;
        if (c.softcap > 0.0f) {
            const float e = exp(score / c.softcap * 2.0f);
            score = c.softcap * ((e - 1.0f) / (e + 1.0f));
        }
        scores.push_back(score);
        m = std::max(m, score);
    }
    float lanes[16] = {};
    Floats found(static_cast<size_t>(2 + c.v_dim), 0.0f);
    for (int p = begin; p < end; ++p) {
        const float share = exp(scores[static_cast<size_t>(p - begin)] - m);
        lanes[p % 16] = lanes[p % 16] + share;
        for (int i = 0; i < c.v_dim; ++i) {
            float& sum = found[static_cast<size_t>(2 + i)];
            sum = fma(share, values[p * c.v_dim + i], sum);
        }
    }
    found[0] = m;
    found[1] = sum_lanes(lanes);
    return found;
}

void check(const Case& c, const Operations& operations) {
    const Filled filled(c, operations);
    const int rows = c.heads * c.queries;
    test::Random random(9);
    Floats q(static_cast<size_t>(rows * c.k_dim));
    for (float& x : q) x = random.normal();
    AttentionSpan span;
    span.q = q.data();
    span.q_stride = static_cast<size_t>(c.heads * c.k_dim);
    span.queries = c.queries;
    span.heads = c.heads;
    span.kv_heads = c.kv_heads;
    span.position = kFilled - c.queries;
    span.k = filled.memory.data();
    span.v = filled.values_of(filled.memory.data());
    span.pages = filled.pages.data();
    Floats scratch(operations.attention_scratch(filled.shape) + 16), m(kAttentionRows), l(kAttentionRows);
    Floats o(static_cast<size_t>(kAttentionRows * filled.shape.v_stride));
    auto* aligned = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64);
    for (int block = 0; block < 2; ++block) {
        operations.attend_block(filled.shape, span, block, aligned, {m.data(), l.data(), o.data()});
        for (int r = 0; r < rows; ++r) {
            const Floats wanted = twin(c, filled, r % c.heads * c.kv_heads / c.heads, q.data() + r * c.k_dim,
                                       span.position + r / c.heads, block);
            if (wanted.size() == 1) {
                CHECK(l[r] < 0.0f, "%s row %d sees nothing of block %d", operations.name, r, block);
                continue;
            }
            const bool equal = m[r] == wanted[0] && l[r] == wanted[1] &&
                               std::memcmp(o.data() + r * filled.shape.v_stride, wanted.data() + 2,
                                           static_cast<size_t>(c.v_dim) * sizeof(float)) == 0;
            CHECK(equal, "%s row %d of %dx%d, block %d, k %d, v %d, half %d, latent %d, kv heads %d", operations.name,
                  r, c.heads, c.queries, block, c.k_dim, c.v_dim, c.half, c.latent, c.kv_heads);
        }
    }
}

FREETOKEN_TEST(blocks_have_the_bits_of_the_contract) {
    const FloatMode mode;
    for (const Kernels* kernels : available_kernels()) {
        const Operations* operations = operations_for(kernels->name);
        for (bool half : {false, true}) {
            for (int heads : {1, 2, 3, 4, 7, 8, 15, 16}) check({heads, 1, 32, 48, half, false, {}, 0.0f}, *operations);
            for (int queries : {2, 5, 32}) check({1, queries, 20, 36, half, false, {}, 0.0f}, *operations);
            check({4, 8, 7, 5, half, false, {90, 0}, 2.0f}, *operations);
            check({3, 4, 24, 80, half, false, {0, 100}, 0.0f}, *operations);
            check({2, 9, 16, 16, half, false, {1, 0}, 0.0f}, *operations);
            for (int group : {1, 2, 3, 5, 8}) check({3 * group, 1, 40, 72, half, false, {0, 90}, 0.0f, 3}, *operations);
            check({32, 1, 64, 64, half, false, {}, 0.0f, 4}, *operations);
            check({16, 2, 36, 20, half, true, {}, 0.0f}, *operations);
            check({5, 3, 48, 32, half, true, {50, 0}, 0.0f}, *operations);
        }
    }
}

}  // namespace
}  // namespace freetoken

int main(int argc, char** argv) {
    return freetoken::test::run_tests(argc, argv);
}
