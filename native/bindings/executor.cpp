// The native executor in Python. Steps leave the interpreter lock.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "bindings/arrays.h"
#include "bindings/bind.h"
#include "bindings/describe.h"
#include "bindings/machine.h"
#include "bindings/routing.h"
#include "exec/executor.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace freetoken {
namespace {

using IntPairs = nb::ndarray<const int32_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
using NumpyLine = NumpyArray<uint8_t, 1>;

constexpr std::pair<const char*, BlockKind> kBlockKinds[] = {
    {"page", BlockKind::page}, {"window", BlockKind::window}, {"state", BlockKind::state}};

BlockKind kind_named(const std::string& name) {
    for (const auto& [known, kind] : kBlockKinds) {
        if (name == known) return kind;
    }
    throw ProgramError("context memory has no blocks of the kind " + name);
}

class PyExecutor {
public:
    PyExecutor(nb::handle program, nb::dict dense, nb::handle banks, std::optional<int> threads, const std::string& isa,
               const std::string& kv_dtype, int page_tokens, int pages, int windows, int states, int max_tokens,
               int64_t serial_cost) {
        if (kv_dtype != "f32" && kv_dtype != "f16") throw ProgramError("a cache cannot hold " + kv_dtype);
        ModelSpec model;
        model.program = program_spec(program);
        for (const auto& [name, tensor] : dense)
            model.weights.emplace(nb::cast<std::string>(name), weight_spec(tensor, lender_));
        for (nb::handle bank : banks) model.banks.push_back(bank_spec(bank, lender_));
        const Settings settings = {
            page_tokens, {pages, windows, states}, kv_dtype == "f16", max_tokens, serial_cost};
        const Kernels& kernels = kernels_named(isa);
        const Operations& operations = operations_beside(kernels);
        isa_ = kernels.name;
        std::vector<int> cpus = cpus_for(threads);
        const nb::gil_scoped_release unlocked;
        executor_ = std::make_unique<Executor>(model, settings, kernels, operations, std::move(cpus));
    }

    NumpyRows step(Ints tokens, Ints positions, Ints seq_starts, const std::vector<Ints>& page_tables, Ints rows,
                   size_t first, std::optional<size_t> last, const std::vector<Ints>& window_tables,
                   const std::optional<Ints>& states, const std::optional<IntPairs>& saves) {
        BatchView batch;
        batch.tokens = view(tokens);
        batch.positions = view(positions);
        batch.seq_starts = view(seq_starts);
        for (const Ints& table : page_tables) batch.page_tables.push_back(view(table));
        batch.rows = view(rows);
        for (const Ints& table : window_tables) batch.window_tables.push_back(view(table));
        if (states) batch.states = view(*states);
        if (saves) batch.saves = {saves->data(), saves->size()};
        auto [logits, data] = new_rows(rows.size(), static_cast<size_t>(executor_->vocab()));
        const size_t end = last.value_or(executor_->operations());
        if (end < executor_->operations()) std::fill_n(data, logits.size(), 0.0f);
        {
            const nb::gil_scoped_release unlocked;
            executor_->step(batch, first, end, data);
        }
        tokens_ = static_cast<int>(tokens.size());
        rows_ = static_cast<int>(rows.size());
        return logits;
    }

    NumpyRows buffer(const std::string& name) const {
        const Buffer& source = executor_->buffer(name);
        const int rows = source.per_row ? rows_ : tokens_;
        auto [copy, data] = new_rows(static_cast<size_t>(rows), static_cast<size_t>(source.width));
        for (int i = 0; i < rows; ++i, data += source.width) {
            for (int c = 0; c < source.width; ++c)
                data[c] = source.integers ? static_cast<float>(source.int_row(i)[c]) : source.row(i)[c];
        }
        return copy;
    }

    // Puts rows into a buffer as an operation would have, before a step that begins with one that reads them.
    void write_buffer(const std::string& name, FloatRows rows) {
        const Buffer& target = executor_->buffer(name);
        if (rows.shape(1) != static_cast<size_t>(target.width) ||
            rows.shape(0) > static_cast<size_t>(executor_->max_tokens()))
            throw ProgramError("the buffer " + name + " does not hold such rows");
        const nb::gil_scoped_release unlocked;
        const float* values = rows.data();
        for (int i = 0; i < static_cast<int>(rows.shape(0)); ++i, values += target.width) {
            if (target.integers)
                std::transform(values, values + target.width, target.int_row(i),
                               [](float value) { return static_cast<int32_t>(value); });
            else
                std::copy_n(values, target.width, target.row(i));
        }
    }

    void resize_context(int pages, int windows, int states) {
        const nb::gil_scoped_release unlocked;
        executor_->context().resize({pages, windows, states});
    }
    void copy_block(const std::string& kind, int source, int target) {
        executor_->context().copy(kind_named(kind), source, target);
    }
    NumpyLine read_block(const std::string& kind, int block) const {
        const ContextStore& context = executor_->context();
        auto [copy, data] = new_array<uint8_t, 1>({context.block_bytes(kind_named(kind))});
        context.read(kind_named(kind), block, data);
        return copy;
    }
    void write_block(const std::string& kind, int block, Bytes data) {
        ContextStore& context = executor_->context();
        if (data.size() != context.block_bytes(kind_named(kind)))
            throw ProgramError("a block of " + std::to_string(context.block_bytes(kind_named(kind))) +
                               " bytes instead of " + std::to_string(data.size()));
        context.write(kind_named(kind), block, data.data());
    }
    std::tuple<int, int, int> room() const {
        const ContextRoom room = executor_->context().room();
        return {room.pages, room.windows, room.states};
    }
    nb::dict block_bytes() const {
        nb::dict result;
        for (const auto& [name, kind] : kBlockKinds) result[name] = executor_->context().block_bytes(kind);
        return result;
    }

    void record_routing(bool on) { executor_->routing().record(on, executor_->max_tokens()); }
    NumpyRouting routing() const { return recorded_routing(*executor_); }
    void force_routing(const std::optional<RoutingIds>& ids) { freetoken::force_routing(*executor_, ids); }

    nb::dict counters() const {
        const Counters counters = executor_->counters();
        nb::dict result;
        result["steps"] = counters.steps;
        result["experts_run"] = counters.experts_run;
        result["expert_bytes"] = counters.expert_bytes;
        result["expert_seconds"] = counters.expert_seconds;
        result["dense_seconds"] = counters.dense_seconds;
        result["attention_seconds"] = counters.attention_seconds;
        return result;
    }

    int page_tokens() const { return executor_->context().cache().page_tokens(); }
    int threads() const { return executor_->threads(); }
    size_t operations() const { return executor_->operations(); }
    const std::string& isa() const { return isa_; }

private:
    static std::span<const int32_t> view(const Ints& array) { return {array.data(), array.size()}; }

    Lender lender_;
    std::unique_ptr<Executor> executor_;
    std::string isa_;
    int tokens_ = 0;  // of the last step
    int rows_ = 0;
};

}  // namespace

void bind_executor(nb::module_& m) {
    nb::class_<PyExecutor>(m, "Executor")
        .def(nb::init<nb::handle, nb::dict, nb::handle, std::optional<int>, const std::string&, const std::string&, int,
                      int, int, int, int, int64_t>(),
             "program"_a, "dense"_a, "banks"_a, nb::kw_only(), "threads"_a = nb::none(), "isa"_a = "",
             "kv_dtype"_a = "f16", "page_tokens"_a = 16, "pages"_a = 0, "windows"_a = 0, "states"_a = 0,
             "max_tokens"_a = 512, "serial_cost"_a = Settings{}.serial_cost)
        .def("step", &PyExecutor::step, "tokens"_a, "positions"_a, "seq_starts"_a, "page_tables"_a, "rows"_a,
             "first"_a = 0, "stop_after"_a = nb::none(), nb::kw_only(), "window_tables"_a = std::vector<Ints>(),
             "states"_a = nb::none(), "saves"_a = nb::none())
        .def("buffer", &PyExecutor::buffer, "name"_a)
        .def("write_buffer", &PyExecutor::write_buffer, "name"_a, "rows"_a)
        .def("resize_context", &PyExecutor::resize_context, "pages"_a, "windows"_a, "states"_a)
        .def("copy_block", &PyExecutor::copy_block, "kind"_a, "source"_a, "target"_a)
        .def("read_block", &PyExecutor::read_block, "kind"_a, "block"_a)
        .def("write_block", &PyExecutor::write_block, "kind"_a, "block"_a, "data"_a)
        .def("record_routing", &PyExecutor::record_routing, "on"_a)
        .def("routing", &PyExecutor::routing)
        .def("force_routing", &PyExecutor::force_routing, "ids"_a.none())
        .def("counters", &PyExecutor::counters)
        .def_prop_ro("room", &PyExecutor::room)
        .def_prop_ro("page_tokens", &PyExecutor::page_tokens)
        .def_prop_ro("block_bytes", &PyExecutor::block_bytes)
        .def_prop_ro("threads", &PyExecutor::threads)
        .def_prop_ro("operations", &PyExecutor::operations)
        .def_prop_ro("isa", &PyExecutor::isa);
}

}  // namespace freetoken
