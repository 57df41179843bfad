// Large reads, and memory to read into. Every call that waits for a disk leaves the interpreter lock.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bind.h"
#include "exec/memory.h"
#include "io/numa.h"
#include "io/read.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace freetoken {
namespace {

using HostBytes = NumpyArray<uint8_t, 1>;
using PartTuple = std::tuple<nb::object, uint64_t, size_t>;

// Zeros until they are written, in huge pages where the system has them; freed with the last view. It begins with a
// huge page, so that threads that fill one chunk after another do not meet in the same page.
HostBytes host_memory(size_t size) {
    constexpr size_t kHugePage = size_t{2} << 20;
    if (size > SIZE_MAX - kHugePage) throw std::bad_alloc();
    auto memory = std::make_unique<Mapping>(size + kHugePage, true);
    const auto start = reinterpret_cast<uintptr_t>(memory->data());
    uint8_t* data = memory->data() + (kHugePage - start % kHugePage) % kHugePage;
    nb::capsule owner(memory.release(), [](void* p) noexcept { delete static_cast<Mapping*>(p); });
    return HostBytes(data, {size}, owner);
}

bool bind_to_node(WritableBytes memory, int node) {
    return prefer_node(memory.data(), memory.size(), node);
}

std::string file_name(nb::handle path) {
    PyObject* bytes = nullptr;
    if (PyUnicode_FSConverter(path.ptr(), &bytes) == 0) throw nb::python_error();
    const auto holder = nb::steal<nb::bytes>(bytes);
    return {holder.c_str(), holder.size()};
}

[[noreturn]] void raise_os_error(const ReadError& error, const std::vector<PartTuple>& parts) {
    nb::object path = nb::none();  // as it was given, so that it reads as the caller wrote it
    for (const auto& [name, offset, size] : parts)
        if (file_name(name) == error.path) path = name;
    const nb::object value = nb::handle(PyExc_OSError)(error.code, error.what(), path);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())), value.ptr());
    throw nb::python_error();
}

// Signal handlers run here too, since nothing else of Python's does until the reading is over.
void report(const nb::callable& progress, uint64_t done, size_t total) {
    const nb::gil_scoped_acquire locked;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    progress(done, total);
}

std::tuple<uint64_t, double> read_parts(const std::vector<PartTuple>& parts, WritableBytes out, nb::callable progress,
                                        int threads, size_t chunk, bool direct) {
    if (threads < 1 || chunk == 0) throw std::invalid_argument("reading takes a thread, and chunks of some bytes");
    std::vector<FilePart> wanted;
    size_t end = 0;
    for (const auto& [path, offset, size] : parts) {
        if (size > out.size() - end) throw std::invalid_argument("the parts are more than the memory has room for");
        wanted.push_back({file_name(path), offset, size, out.data() + end});
        end += size;
    }
    if (end != out.size()) throw std::invalid_argument("the parts do not fill the memory");
    const auto watch = [&](uint64_t done) { report(progress, done, end); };
    try {
        const nb::gil_scoped_release unlocked;
        const ReadReport report = read_files(wanted, {threads, chunk, direct}, watch);
        return {report.direct_bytes, report.seconds};
    } catch (const ReadError& error) {
        raise_os_error(error, parts);
    } catch (const std::system_error& error) {
        raise_os_error(ReadError(error.code().value(), error.what(), ""), {});
    }
}

}  // namespace

void bind_io(nb::module_& m) {
    m.def("host_memory", &host_memory, "size"_a);
    m.def("prefer_node", &bind_to_node, "memory"_a, "node"_a);
    m.def("read_files", &read_parts, "parts"_a, "out"_a, "progress"_a, nb::kw_only(),
          "threads"_a = ReadOptions{}.threads, "chunk"_a = ReadOptions{}.chunk, "direct"_a = ReadOptions{}.direct);
}

}  // namespace freetoken
