#include "bindings/machine.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bind.h"
#include "exec/program.h"
#include "pool/topology.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace freetoken {

const Kernels& kernels_named(const std::string& isa) {
    if (isa.empty()) return best_kernels();
    if (const Kernels* kernels = kernels_for(isa)) return *kernels;
    throw ProgramError("this machine cannot run the instruction set " + isa);
}

const Operations& operations_beside(const Kernels& kernels) {
    if (const Operations* operations = operations_for(kernels.name)) return *operations;
    throw ProgramError(std::string("there are no operations for ") + kernels.name);
}

std::vector<int> cpus_for(std::optional<int> threads) {
    if (threads && *threads < 1) throw ProgramError("a pool needs at least one thread");
    const Topology topology = read_topology("/", allowed_cpus());
    return place_threads(topology, threads.value_or(default_threads(topology)));
}

namespace {

std::vector<std::string> isa_names() {
    std::vector<std::string> names;
    for (const Kernels* kernels : available_kernels()) names.emplace_back(kernels->name);
    return names;
}

nb::dict topology(const std::string& root, std::optional<std::vector<int>> allowed) {
    const Topology found = read_topology(root, allowed ? *allowed : allowed_cpus());
    const int threads = default_threads(found);
    nb::dict result;
    nb::list cpus;
    for (const Cpu& cpu : found.cpus) cpus.append(cpu.id);
    result["cpus"] = cpus;
    result["physical_cores"] = found.physical_cores();
    result["quota"] = found.quota > 0 ? nb::object(nb::float_(found.quota)) : nb::none();
    result["threads"] = threads;
    result["placement"] = place_threads(found, threads);
    return result;
}

std::vector<int> placement(int threads, const std::string& root, std::optional<std::vector<int>> allowed) {
    if (threads < 1) throw ProgramError("a pool needs at least one thread");
    return place_threads(read_topology(root, allowed ? *allowed : allowed_cpus()), threads);
}

}  // namespace

void bind_machine(nb::module_& m) {
    m.def("isas", &isa_names);
    m.def("topology", &topology, "root"_a = "/", "allowed"_a = nb::none());
    m.def("placement", &placement, "threads"_a, "root"_a = "/", "allowed"_a = nb::none());
}

}  // namespace freetoken
