// The angles of rotary positions. Products are in f32, as the contract says; cosine and sine are taken in double, so
// that their f32 values do not depend on the C library.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace freetoken {

// A factor that grows with the position: 1 + rate * log(1 + floor((position + ahead) / every)); a rate of 0: none.
struct Growth {
    float rate = 0.0f;
    int32_t every = 1;
    int32_t ahead = 0;

    float at(int32_t position) const {
        if (rate == 0.0f) return 1.0f;
        const int64_t steps = (int64_t{position} + ahead) / every;
        return 1.0f + rate * static_cast<float>(std::log1p(static_cast<double>(steps)));
    }
};

// Cosine and sine of `position` times each frequency, both times `scale`: inv_freq.size() values each.
inline void rope_angles(std::span<const float> inv_freq, float scale, int32_t position, float* cosine, float* sine) {
    for (size_t i = 0; i < inv_freq.size(); ++i) {
        const double angle = static_cast<float>(position) * inv_freq[i];
        cosine[i] = static_cast<float>(std::cos(angle)) * scale;
        sine[i] = static_cast<float>(std::sin(angle)) * scale;
    }
}

}  // namespace freetoken
