// Measurements of memory and of experts, and products of one matrix.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bind.h"
#include "bindings/describe.h"
#include "bindings/machine.h"
#include "exec/probe.h"
#include "exec/record_layout.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace freetoken {
namespace {

// A pool and the tables of an instruction set, for a measurement.
struct Bench {
    Pool pool;
    Machine machine;

    Bench(std::optional<int> threads, const std::string& isa) : pool(cpus_for(threads)) {
        const Kernels& kernels = kernels_named(isa);
        machine = {&kernels, &operations_beside(kernels), pool.size()};
    }
};

class PyProbe {
public:
    PyProbe(std::optional<int> threads, const std::string& isa) : bench_(threads, isa) {}

    std::tuple<int64_t, double> read(Bytes data) {
        const nb::gil_scoped_release unlocked;
        const Measured measured = read_bandwidth(bench_.pool, bench_.machine, data.data(), data.size());
        return {measured.bytes, measured.seconds};
    }

    std::tuple<int64_t, double> experts(nb::handle fields, size_t record_bytes, Bytes records, Ints order) {
        std::vector<FieldSpec> specs;
        for (nb::handle field : fields) specs.push_back(field_spec(field));
        const RecordLayout layout = record_layout(specs, record_bytes);
        const std::vector<int32_t> wanted(order.data(), order.data() + order.size());
        for (const int32_t record : wanted) {
            if (record < 0 || (static_cast<size_t>(record) + 1) * record_bytes > records.size())
                throw std::out_of_range("record " + std::to_string(record) + " is beyond the buffer");
        }
        const nb::gil_scoped_release unlocked;
        const Measured measured = expert_bandwidth(bench_.pool, bench_.machine, layout, records.data(), wanted);
        return {measured.bytes, measured.seconds};
    }

    NumpyRows matmul(const std::string& codec, Bytes packed, int rows, int cols, FloatRows x) {
        const PackedMatrix matrix = packed_matrix(codec, rows, cols, packed);
        if (x.shape(1) != static_cast<size_t>(cols)) throw ProgramError("the columns of x and of the matrix differ");
        auto [y, data] = new_rows(x.shape(0), static_cast<size_t>(rows));
        const nb::gil_scoped_release unlocked;
        freetoken::matmul(bench_.pool, bench_.machine, matrix, x.data(), static_cast<int>(x.shape(0)), data);
        return y;
    }

private:
    Bench bench_;
};

}  // namespace

void bind_probe(nb::module_& m) {
    nb::class_<PyProbe>(m, "Probe")
        .def(nb::init<std::optional<int>, const std::string&>(), "threads"_a = nb::none(), "isa"_a = "")
        .def("read", &PyProbe::read, "data"_a)
        .def("experts", &PyProbe::experts, "fields"_a, "record_bytes"_a, "records"_a, "order"_a)
        .def("matmul", &PyProbe::matmul, "codec"_a, "packed"_a, "rows"_a, "cols"_a, "x"_a);
}

}  // namespace freetoken
