// The worker beside a device, in Python. Calls that wait leave the interpreter lock.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bind.h"
#include "bindings/describe.h"
#include "bindings/machine.h"
#include "hybrid/expert_worker.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace freetoken {
namespace {

using Activation = std::tuple<std::string, float, float>;

nb::dict layout_of(int max_tokens, int top_k, int hidden) {
    const MailboxLayout layout = MailboxShape{max_tokens, top_k, hidden}.layout();
    nb::dict result;
    result["request"] = offsetof(MailboxHeader, request);
    result["done"] = offsetof(MailboxHeader, done);
    result["rows"] = offsetof(MailboxHeader, rows);
    result["top_k"] = offsetof(MailboxHeader, top_k);
    result["ids"] = layout.ids;
    result["inputs"] = layout.inputs;
    result["outputs"] = layout.outputs;
    result["bytes"] = layout.bytes;
    result["row_stride"] = mailbox_row_stride(static_cast<uint64_t>(hidden));
    return result;
}

// An activation as programs call it.
Glu glu_of(const Activation& activation) {
    const auto& [name, alpha, limit] = activation;
    if (const std::optional<Glu> glu = glu_named(name, alpha, limit)) return *glu;
    throw ProgramError("the activation " + name + " is unknown");
}

class PyExpertWorker {
public:
    PyExpertWorker(nb::handle banks, const std::vector<Activation>& activations, WritableBytes box, int max_tokens,
                   int top_k, int hidden, double patience, std::optional<int> threads, const std::string& isa)
        : box_(std::move(box)) {
        std::vector<BankSpec> specs;
        for (nb::handle bank : banks) specs.push_back(bank_spec(bank, lender_));
        std::vector<Glu> glus;
        for (const Activation& activation : activations) glus.push_back(glu_of(activation));
        const Kernels& kernels = kernels_named(isa);
        const Operations& operations = operations_beside(kernels);
        isa_ = kernels.name;
        const MailboxShape shape = {max_tokens, top_k, hidden};
        const MailboxView view(box_.data(), box_.size(), shape);
        std::vector<int> cpus = cpus_for(threads);
        const nb::gil_scoped_release unlocked;
        auto share = std::make_unique<CpuShare>(specs, glus, shape, view, kernels, operations, std::move(cpus));
        const std::chrono::duration<double> seconds(patience);
        worker_ = std::make_unique<ExpertWorker>(view, std::move(share),
                                                 std::chrono::duration_cast<std::chrono::nanoseconds>(seconds));
    }

    bool wake() {
        const nb::gil_scoped_release unlocked;
        return worker().wake();
    }
    void doze() { worker().doze(); }
    void close() {
        {
            const nb::gil_scoped_release unlocked;
            worker_.reset();
        }
        box_ = {};
        lender_ = {};
    }

    std::string failure() const { return worker().failure(); }
    uintptr_t argument(int layer) const {
        if (layer < 0 || layer >= worker().layers()) throw std::out_of_range("no MoE layer " + std::to_string(layer));
        return reinterpret_cast<uintptr_t>(worker().argument(layer));
    }
    int threads() const { return worker().threads(); }
    const std::string& isa() const { return isa_; }

    nb::dict counters() const {
        const WorkerCounters counters = worker().counters();
        nb::dict result;
        result["requests"] = counters.requests;
        result["empty"] = counters.empty;
        result["experts"] = counters.experts;
        result["bytes"] = counters.bytes;
        result["seconds"] = 1e-9 * static_cast<double>(counters.nanoseconds);
        return result;
    }

private:
    ExpertWorker& worker() const {
        if (worker_ == nullptr) throw std::runtime_error("the worker is closed");
        return *worker_;
    }

    Lender lender_;
    WritableBytes box_;
    std::string isa_;
    std::unique_ptr<ExpertWorker> worker_;
};

}  // namespace

void bind_hybrid(nb::module_& m) {
    m.def("mailbox_layout", &layout_of, "max_tokens"_a, "top_k"_a, "hidden"_a);

    nb::class_<PyExpertWorker>(m, "ExpertWorker")
        .def(nb::init<nb::handle, const std::vector<Activation>&, WritableBytes, int, int, int, double,
                      std::optional<int>, const std::string&>(),
             "banks"_a, "activations"_a, nb::kw_only(), "box"_a, "max_tokens"_a, "top_k"_a, "hidden"_a, "patience"_a,
             "threads"_a = nb::none(), "isa"_a = "")
        .def("wake", &PyExpertWorker::wake)
        .def("doze", &PyExpertWorker::doze)
        .def("close", &PyExpertWorker::close)
        .def("argument", &PyExpertWorker::argument, "layer"_a)
        .def("counters", &PyExpertWorker::counters)
        .def_prop_ro("failure", &PyExpertWorker::failure)
        .def_prop_ro("threads", &PyExpertWorker::threads)
        .def_prop_ro("isa", &PyExpertWorker::isa)
        .def_prop_ro_static("function",
                            [](nb::handle) { return reinterpret_cast<uintptr_t>(&ExpertWorker::host_function); });
}

}  // namespace freetoken
