// Arrays of Python as the module takes and makes them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace freetoken {

using Bytes = nanobind::ndarray<const uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using WritableBytes = nanobind::ndarray<uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Ints = nanobind::ndarray<const int32_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Floats = nanobind::ndarray<const float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using FloatRows = nanobind::ndarray<const float, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
using WritableRows = nanobind::ndarray<float, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

template <class T, size_t dimensions>
using NumpyArray = nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<dimensions>>;
using NumpyRows = NumpyArray<float, 2>;

// A new array of that shape and of no particular values, and where they lie.
template <class T, size_t dimensions>
std::pair<NumpyArray<T, dimensions>, T*> new_array(const std::array<size_t, dimensions>& shape) {
    size_t size = 1;
    for (const size_t length : shape) size *= length;
    auto values = std::make_unique_for_overwrite<T[]>(size);
    T* data = values.get();
    const nanobind::capsule owner(values.release(), [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return {NumpyArray<T, dimensions>(data, dimensions, shape.data(), owner), data};
}

inline std::pair<NumpyRows, float*> new_rows(size_t rows, size_t cols) {
    return new_array<float, 2>({rows, cols});
}

}  // namespace freetoken
