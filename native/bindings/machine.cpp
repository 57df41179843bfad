#include "bindings/machine.h"

#include "exec/program.h"
#include "pool/topology.h"

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

}  // namespace freetoken
