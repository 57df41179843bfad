// A test program in one header: register tests, check conditions, run those whose name contains the argument.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace freetoken::test {

struct Test {
    const char* name;
    void (*run)();
};

inline std::vector<Test>& registry() {
    static std::vector<Test> tests;
    return tests;
}

inline int failures = 0;

inline void fail(const char* file, int line, const std::string& what) {
    if (++failures <= 20) std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}

struct Register {
    Register(const char* name, void (*run)()) { registry().push_back({name, run}); }
};

inline int run_tests(int argc, char** argv) {
    const std::string filter = argc > 1 ? argv[1] : "";
    int ran = 0;
    for (const Test& test : registry()) {
        if (std::string(test.name).find(filter) == std::string::npos) continue;
        const int before = failures;
        test.run();
        std::printf("%-4s %s\n", failures == before ? "ok" : "FAIL", test.name);
        ++ran;
    }
    std::printf("%d tests, %d failed checks\n", ran, failures);
    return failures == 0 && ran > 0 ? 0 : 1;
}

}  // namespace freetoken::test

#define FREETOKEN_TEST(name)                                               \
    static void name();                                                    \
    static const ::freetoken::test::Register register_##name(#name, name); \
    static void name()

#define CHECK(condition, ...)                                                                  \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            char text_[512];                                                                   \
            std::snprintf(text_, sizeof text_, __VA_ARGS__);                                   \
            ::freetoken::test::fail(__FILE__, __LINE__, std::string(#condition ": ") + text_); \
        }                                                                                      \
    } while (0)
