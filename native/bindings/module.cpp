// The Python module engine._native, described by engine/_native.pyi. Every call that computes leaves the interpreter
// lock.
#include <nanobind/nanobind.h>

#include "bindings/bind.h"

NB_MODULE(_native, m) {
    m.doc() = "Operations, kernels and the executor of the engine.";
    freetoken::bind_machine(m);
    freetoken::bind_codecs(m);
    freetoken::bind_executor(m);
    freetoken::bind_probe(m);
    freetoken::bind_sim(m);
    freetoken::bind_hybrid(m);
    freetoken::bind_io(m);
}
