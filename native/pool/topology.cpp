#include "pool/topology.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#ifdef __linux__
#include <sched.h>
#endif

namespace freetoken {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> read_text(const fs::path& path) {
    std::ifstream file(path);
    std::ostringstream text;
    if (!file || !(text << file.rdbuf())) return std::nullopt;
    std::string result = text.str();
    while (!result.empty() && (result.back() == '\n' || result.back() == ' ')) result.pop_back();
    return result;
}

std::optional<long long> read_number(const fs::path& path) {
    const auto text = read_text(path);
    long long value = 0;
    if (!text || std::from_chars(text->data(), text->data() + text->size(), value).ec != std::errc())
        return std::nullopt;
    return value;
}

// An unreadable list counts as absent: sandboxes put odd things there.
std::set<int> read_cpu_set(const fs::path& path) {
    const auto text = read_text(path);
    if (!text) return {};
    try {
        const std::vector<int> list = parse_cpu_list(*text);
        return {list.begin(), list.end()};
    } catch (const std::invalid_argument&) {
        return {};
    }
}

void keep_smaller(double& quota, double found) {
    if (found > 0 && (quota == 0 || found < quota)) quota = found;
}

// cgroup v2: "max 100000" or "150000 100000", microseconds of CPU time a period.
double quota_v2(const fs::path& folder) {
    const auto text = read_text(folder / "cpu.max");
    if (!text) return 0;
    std::istringstream fields(*text);
    double granted = 0;
    double period = 0;
    return fields >> granted >> period && period > 0 ? granted / period : 0;
}

double quota_v1(const fs::path& folder) {
    const auto granted = read_number(folder / "cpu.cfs_quota_us");
    const auto period = read_number(folder / "cpu.cfs_period_us");
    return granted && period && *granted > 0 && *period > 0
               ? static_cast<double>(*granted) / static_cast<double>(*period)
               : 0;
}

// The limit of a group is the smallest of its own and its ancestors'. Inside a container the group's path may not be
// visible below the mount; then only the mount's top is read.
double smallest_quota(const fs::path& mount, const std::string& group, double (*read)(const fs::path&)) {
    double quota = 0;
    keep_smaller(quota, read(mount));
    fs::path folder = mount;
    for (const auto& part : fs::path(group).relative_path()) {
        if (part == "..") break;
        folder /= part;
        keep_smaller(quota, read(folder));
    }
    return quota;
}

double cgroup_quota(const fs::path& root) {
    const auto groups = read_text(root / "proc/self/cgroup");
    if (!groups) return 0;
    const fs::path mount = root / "sys/fs/cgroup";
    double quota = 0;
    std::istringstream lines(*groups);
    for (std::string line; std::getline(lines, line);) {  // "hierarchy:controllers:path"
        const size_t first = line.find(':');
        const size_t second = line.find(':', first == std::string::npos ? first : first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const std::string group = line.substr(second + 1);
        if (controllers.empty()) {
            keep_smaller(quota, smallest_quota(mount, group, quota_v2));
            continue;
        }
        std::istringstream names(controllers);
        for (std::string name; std::getline(names, name, ',');) {
            if (name != "cpu") continue;
            const fs::path own = fs::exists(mount / controllers) ? mount / controllers : mount / "cpu";
            keep_smaller(quota, smallest_quota(own, group, quota_v1));
        }
    }
    return quota;
}

// Small cores: Intel lists them, ARM gives each CPU a capacity.
std::set<int> efficient_cpus(const fs::path& root, const std::vector<int>& online) {
    std::set<int> small = read_cpu_set(root / "sys/devices/cpu_atom/cpus");
    if (!small.empty()) return small;
    std::vector<std::pair<int, long long>> capacities;
    long long largest = 0;
    for (int id : online) {
        const auto capacity =
            read_number(root / "sys/devices/system/cpu" / ("cpu" + std::to_string(id)) / "cpu_capacity");
        if (!capacity) return {};
        capacities.emplace_back(id, *capacity);
        largest = std::max(largest, *capacity);
    }
    for (const auto& [id, capacity] : capacities) {
        if (capacity < largest) small.insert(id);
    }
    return small;
}

// First CPUs of every physical core, big cores before small ones, then the siblings in the same order.
std::vector<Cpu> by_preference(const Topology& topology) {
    std::set<std::pair<int, int>> seen;
    std::vector<std::pair<int, Cpu>> ranked;
    for (const Cpu& cpu : topology.cpus) {
        const bool sibling = !seen.insert({cpu.package, cpu.core}).second;
        ranked.emplace_back(2 * (sibling ? 1 : 0) + (cpu.efficient ? 1 : 0), cpu);
    }
    std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<Cpu> order;
    for (const auto& entry : ranked) order.push_back(entry.second);
    return order;
}

}  // namespace

int Topology::physical_cores() const {
    std::set<std::pair<int, int>> cores;
    for (const Cpu& cpu : cpus) cores.insert({cpu.package, cpu.core});
    return static_cast<int>(cores.size());
}

std::vector<int> parse_cpu_list(std::string_view text) {
    const std::string_view whole = text;
    std::vector<int> result;
    auto number = [&] {
        int value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc() || value < 0) throw std::invalid_argument("not a list of CPUs: " + std::string(whole));
        text.remove_prefix(static_cast<size_t>(end - text.data()));
        return value;
    };
    while (!text.empty()) {
        const int first = number();
        int last = first;
        if (!text.empty() && text.front() == '-') {
            text.remove_prefix(1);
            last = number();
        }
        if (!text.empty() && text.front() == ',')
            text.remove_prefix(1);
        else if (!text.empty())
            throw std::invalid_argument("not a list of CPUs: " + std::string(whole));
        for (int id = first; id <= last; ++id) result.push_back(id);
    }
    return result;
}

std::vector<int> allowed_cpus() {
    std::vector<int> result;
#ifdef __linux__
    // The mask grows until the kernel accepts it: machines with more than 1024 CPUs exist.
    for (int capacity = 1024; capacity <= 1 << 20 && result.empty(); capacity *= 2) {
        cpu_set_t* set = CPU_ALLOC(capacity);
        const size_t bytes = CPU_ALLOC_SIZE(capacity);
        CPU_ZERO_S(bytes, set);
        if (sched_getaffinity(0, bytes, set) == 0) {
            for (int id = 0; id < capacity; ++id) {
                if (CPU_ISSET_S(id, bytes, set)) result.push_back(id);
            }
        }
        CPU_FREE(set);
    }
#endif
    if (result.empty()) result.push_back(0);
    return result;
}

Topology read_topology(const fs::path& root, const std::vector<int>& allowed) {
    const fs::path folder = root / "sys/devices/system/cpu";
    const std::set<int> online = read_cpu_set(folder / "online");
    std::vector<int> usable;
    for (int id : allowed) {
        if (online.empty() || online.count(id) != 0) usable.push_back(id);
    }
    std::sort(usable.begin(), usable.end());
    const std::set<int> small =
        efficient_cpus(root, online.empty() ? usable : std::vector<int>(online.begin(), online.end()));

    Topology topology;
    for (int id : usable) {
        const fs::path own = folder / ("cpu" + std::to_string(id)) / "topology";
        const auto package = read_number(own / "physical_package_id");
        const auto core = read_number(own / "core_id");
        Cpu cpu;
        cpu.id = id;
        cpu.package = static_cast<int>(package.value_or(0));
        cpu.core = static_cast<int>(core.value_or(id));
        cpu.efficient = small.count(id) != 0;
        topology.cpus.push_back(cpu);
    }
    topology.quota = cgroup_quota(root);
    return topology;
}

int default_threads(const Topology& topology) {
    std::set<std::pair<int, int>> big;
    for (const Cpu& cpu : topology.cpus) {
        if (!cpu.efficient) big.insert({cpu.package, cpu.core});
    }
    int threads = big.empty() ? topology.physical_cores() : static_cast<int>(big.size());
    if (topology.quota > 0) threads = std::min(threads, static_cast<int>(std::floor(topology.quota)));
    return std::max(threads, 1);
}

std::vector<int> place_threads(const Topology& topology, int threads) {
    std::vector<int> placed(static_cast<size_t>(threads), -1);
    if (threads == 1) return placed;
    const std::vector<Cpu> order = by_preference(topology);
    for (size_t i = 0; i < placed.size() && i < order.size(); ++i) placed[i] = order[i].id;
    return placed;
}

}  // namespace freetoken
