// The simulated device in Python: emulated kernels and the memory they work on. engine/device/sim.py makes a driver of
// it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bind.h"
#include "sim/address_range.h"
#include "sim/emulator.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace freetoken {
namespace {

using sim::AddressRange;
using sim::Emulator;
using BytesArray = NumpyArray<uint8_t, 1>;

// (name, letters of its parameters, flat) of every emulated kernel; its place is its number.
std::vector<std::tuple<std::string, std::string, bool>> kernel_list() {
    std::vector<std::tuple<std::string, std::string, bool>> list;
    for (const sim::KernelEntry& kernel : sim::kernels())
        list.emplace_back(kernel.name, kernel.parameters, kernel.flat);
    return list;
}

using GridSize = std::tuple<unsigned, unsigned, unsigned>;
using CounterValues = std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>;

CounterValues launch(Emulator& emulator, size_t number, GridSize grid, unsigned block, unsigned shared,
                     nb::bytes slots) {
    const auto& kernels = sim::kernels();
    if (number >= kernels.size()) throw std::out_of_range("there is no such kernel");
    const sim::KernelEntry& kernel = kernels[number];
    if (slots.size() != kernel.parameters.size() * sizeof(uint64_t))
        throw sim::KernelError("kernel " + kernel.name + " is launched with " + std::to_string(slots.size()) +
                               " bytes of arguments");
    std::vector<uint64_t> words(kernel.parameters.size());
    std::memcpy(words.data(), slots.c_str(), slots.size());
    const sim::Shape shape = {{std::get<0>(grid), std::get<1>(grid), std::get<2>(grid)}, block, shared};
    const nb::gil_scoped_release unlocked;
    const sim::Counters counters = emulator.launch(kernel, shape, words.data());
    return {counters.barriers, counters.collectives, counters.shared_atomics, counters.global_atomics};
}

// The mapped bytes as an array that keeps the range alive.
BytesArray array_of(nb::handle range) {
    const auto& memory = nb::cast<const AddressRange&>(range);
    return BytesArray(memory.data(), {memory.mapped()}, range);
}

template <class T>
T* pointer(uint64_t address) {
    return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

}  // namespace

void bind_sim(nb::module_& m) {
    nb::exception<sim::KernelError>(m, "KernelError", PyExc_AssertionError);

    m.def("sim_kernels", &kernel_list);
    nb::class_<Emulator>(m, "Emulator")
        .def(nb::init<int, uint64_t>(), "threads"_a = 1, "seed"_a = 0)
        .def("launch", &launch, "kernel"_a, "grid"_a, "block"_a, "shared"_a, "slots"_a);

    nb::class_<AddressRange>(m, "AddressRange")
        .def(nb::init<size_t>(), "size"_a)
        .def_prop_ro("address", [](const AddressRange& r) { return reinterpret_cast<uintptr_t>(r.data()); })
        .def_prop_ro("size", &AddressRange::bytes)
        .def_prop_ro("mapped", &AddressRange::mapped)
        .def("map", &AddressRange::map, "size"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("array", [](nb::handle self) { return array_of(self); });

    m.def(
        "copy_memory",
        [](uint64_t target, uint64_t source, size_t bytes) {
            std::memmove(pointer<void>(target), pointer<const void>(source), bytes);
        },
        "target"_a, "source"_a, "size"_a, nb::call_guard<nb::gil_scoped_release>());
    m.def(
        "store_word", [](uint64_t address, uint32_t value) { sim::store_word(pointer<uint32_t>(address), value); },
        "address"_a, "value"_a);
    m.def(
        "wait_word",
        [](uint64_t address, uint32_t value, double seconds) {
            return sim::wait_word(pointer<const uint32_t>(address), value, seconds);
        },
        "address"_a, "value"_a, "seconds"_a, nb::call_guard<nb::gil_scoped_release>());
    m.def(
        "call_function",
        [](uint64_t function, uint64_t argument) { pointer<void(void*)>(function)(pointer<void>(argument)); },
        "function"_a, "argument"_a, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace freetoken
