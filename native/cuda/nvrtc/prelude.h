// Read by NVRTC before all else: builtins of other compilers that our headers use.
#pragma once

#define __builtin_fmaf(a, b, c) __fmaf_rn(a, b, c)
#define __builtin_inff() __int_as_float(0x7F800000)
