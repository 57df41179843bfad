// Which CPUs this process may use, and which of them its threads should sit on.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace freetoken {

struct Cpu {
    int id = 0;
    int package = 0;
    int core = 0;            // number of the physical core within its package
    bool efficient = false;  // a small core beside bigger ones
};

struct Topology {
    std::vector<Cpu> cpus;  // online and allowed, ascending by id
    double quota = 0;       // CPUs that a cgroup grants; 0: no limit

    // Physical cores with at least one usable CPU.
    int physical_cores() const;
};

// Parses the kernel's list format, "0-3,8,10-11". Throws std::invalid_argument on anything else.
std::vector<int> parse_cpu_list(std::string_view text);

// CPUs of the calling thread's affinity mask.
std::vector<int> allowed_cpus();

// Reads sys/devices/system/cpu, sys/devices/cpu_atom, proc/self/cgroup and sys/fs/cgroup below `root`. Files that are
// not there mean: no siblings, no small cores, no quota.
Topology read_topology(const std::filesystem::path& root, const std::vector<int>& allowed);

// One thread a big physical core (a small one where there is nothing else), within the cgroup's quota.
int default_threads(const Topology& topology);

// A CPU for each of `threads` threads: big cores, small cores, then their hardware siblings; -1 where none is left,
// and -1 for a single thread, which the kernel places best.
std::vector<int> place_threads(const Topology& topology, int threads);

}  // namespace freetoken
