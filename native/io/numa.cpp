#include "io/numa.h"

#include <climits>

#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace freetoken {

bool prefer_node(void* address, size_t size, int node) {
#if defined(__linux__) && defined(SYS_mbind)
    // By number, since libnuma's headers are rarely installed: MPOL_PREFERRED, from linux/mempolicy.h.
    constexpr int kPreferred = 1;
    constexpr int kNodes = static_cast<int>(sizeof(unsigned long)) * CHAR_BIT;
    if (node < 0 || node >= kNodes) return false;
    const unsigned long nodes = 1UL << node;
    return syscall(SYS_mbind, address, size, kPreferred, &nodes, static_cast<unsigned long>(kNodes) + 1, 0) == 0;
#else
    (void)address, (void)size, (void)node;
    return false;
#endif
}

}  // namespace freetoken
