// FOR_EACH_CODEC(X) is X(name) for every codec; with FREETOKEN_CODEC defined, for that one alone: compiling all codecs
// of a kernel for a device takes long, and a model has two or three.
#pragma once

#include "core/codec.h"

#ifdef FREETOKEN_CODEC
#define FOR_EACH_CODEC(X) FREETOKEN_FOR_ONE_CODEC(X, FREETOKEN_CODEC)
#define FREETOKEN_FOR_ONE_CODEC(X, codec) X(codec)
#else
#define FOR_EACH_CODEC(X) \
    X(f32)                \
    X(f16)                \
    X(bf16)               \
    X(q8_0)               \
    X(q4_0)               \
    X(q4_1)               \
    X(q5_0)               \
    X(q5_1)               \
    X(mxfp4)              \
    X(iq4_nl)             \
    X(iq4_xs)             \
    X(q2_k)               \
    X(q3_k)               \
    X(q4_k)               \
    X(q5_k)               \
    X(q6_k)               \
    X(nvfp4)              \
    X(int4_32)            \
    X(int4_32z)           \
    X(int4_128z)          \
    X(fp8)                \
    X(mxfp8)
#endif
