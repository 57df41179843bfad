// Runs every registered test, or those whose name contains the argument.
#include "core/float_mode.h"
#include "kernels_support.h"

namespace freetoken::test {
namespace {

int failures = 0;

}  // namespace

std::vector<Test>& registry() {
    static std::vector<Test> tests;
    return tests;
}

void fail(const char* file, int line, const std::string& what) {
    if (++failures <= 20) std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}

static int run_all(const std::string& filter) {
    const FloatMode mode;
    int ran = 0;
    for (const Test& test : registry()) {
        if (std::string(test.name).find(filter) == std::string::npos) continue;
        const int before = failures;
        test.run();
        std::printf("%-4s %s\n", failures == before ? "ok" : "FAIL", test.name);
        ++ran;
    }
    std::printf("%d tests, %d failed checks; tables:", ran, failures);
    for (const Kernels* kernels : available_kernels()) std::printf(" %s", kernels->name);
    std::printf("\n");
    return failures == 0 && ran > 0 ? 0 : 1;
}

}  // namespace freetoken::test

int main(int argc, char** argv) { return freetoken::test::run_all(argc > 1 ? argv[1] : ""); }
