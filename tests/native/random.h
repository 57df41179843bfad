// Random numbers, and random scales of every kind that a checkpoint may hold.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <random>

namespace freetoken::test {

class Random {
public:
    explicit Random(uint64_t seed) : engine_(seed) {}
    int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }
    float normal() { return std::normal_distribution<float>()(engine_); }
    uint32_t bits() { return static_cast<uint32_t>(engine_()); }
    template <class T>
    T pick(std::initializer_list<T> choices) {
        return choices.begin()[between(0, static_cast<int>(choices.size()) - 1)];
    }

private:
    std::mt19937_64 engine_;
};

// any: every finite scale; tiny: the subnormals and their neighbours; huge: the largest.
enum class Scales { ordinary, any, tiny, huge, zero };

inline uint16_t random_half(Random& random, Scales scales) {
    const uint16_t sign = static_cast<uint16_t>(random.between(0, 1) << 15);
    switch (scales) {
        case Scales::any:
            return static_cast<uint16_t>(sign | random.between(0, 0x7BFF));
        case Scales::tiny:
            return static_cast<uint16_t>(sign | random.between(0, 0x3FF));
        case Scales::huge:
            return static_cast<uint16_t>(sign | random.between(0x7000, 0x7BFF));
        case Scales::zero:
            return sign;
        case Scales::ordinary:
            break;
    }
    return static_cast<uint16_t>(sign | random.between(0x1000, 0x2800));
}

inline uint8_t random_e8m0(Random& random, Scales scales) {
    switch (scales) {
        case Scales::any:
            return static_cast<uint8_t>(random.between(0, 254));
        case Scales::tiny:
            return static_cast<uint8_t>(random.between(0, 6));
        case Scales::huge:
            return static_cast<uint8_t>(random.between(240, 254));
        case Scales::zero:
            return 0;
        case Scales::ordinary:
            break;
    }
    return static_cast<uint8_t>(random.between(112, 124));
}

inline uint8_t random_e4m3(Random& random, Scales scales) {
    const uint8_t sign = static_cast<uint8_t>(random.between(0, 1) << 7);
    switch (scales) {
        case Scales::any:
            return static_cast<uint8_t>(sign | random.between(0, 0x7E));
        case Scales::tiny:
            return static_cast<uint8_t>(sign | random.between(0, 8));
        case Scales::huge:
            return static_cast<uint8_t>(sign | random.between(0x78, 0x7E));
        case Scales::zero:
            return sign;
        case Scales::ordinary:
            break;
    }
    return static_cast<uint8_t>(sign | random.between(0x28, 0x48));
}

// An f32 scale or row factor. `huge` leaves a factor 2^7 of room below the largest number.
inline float random_factor(Random& random, Scales scales) {
    const float magnitude = 0.5f + std::fabs(random.normal());
    const float value = random.between(0, 1) == 0 ? magnitude : -magnitude;
    switch (scales) {
        case Scales::any:
            return std::ldexp(value, random.between(-149, 110));
        case Scales::tiny:
            return std::ldexp(value, random.between(-149, -127));
        case Scales::huge:
            return std::ldexp(value, 116);
        case Scales::zero:
            return random.between(0, 1) == 0 ? 0.0f : -0.0f;
        case Scales::ordinary:
            break;
    }
    return std::ldexp(value, random.between(-9, -5));
}

}  // namespace freetoken::test
