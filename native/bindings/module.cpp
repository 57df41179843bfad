// The Python module engine._native, described by engine/_native.pyi. Every call that computes leaves the interpreter
// lock.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "bindings/bind.h"
#include "bindings/describe.h"
#include "bindings/machine.h"
#include "bindings/routing.h"
#include "core/encode.h"
#include "core/float_mode.h"
#include "core/codec_names.h"
#include "core/pack.h"
#include "exec/executor.h"
#include "exec/probe.h"
#include "exec/record_layout.h"
#include "exec/rope_angles.h"
#include "pool/topology.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace freetoken {
namespace {

using WritableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntPairs = nb::ndarray<const int32_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using WritableRows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using NumpyArray = nb::ndarray<nb::numpy, T, nb::ndim<2>>;
using NumpyRows = NumpyArray<float>;
using NumpyBytes = NumpyArray<uint8_t>;
using NumpyLine = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

// A new array [rows][cols] of no particular values, and where they lie.
template <class T = float>
std::pair<NumpyArray<T>, T*> new_rows(size_t rows, size_t cols) {
    auto values = std::make_unique_for_overwrite<T[]>(rows * cols);
    T* data = values.get();
    nb::capsule owner(values.release(), [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return {NumpyArray<T>(data, {rows, cols}, owner), data};
}

std::pair<NumpyLine, uint8_t*> new_line(size_t bytes) {
    auto values = std::make_unique_for_overwrite<uint8_t[]>(bytes);
    uint8_t* data = values.get();
    nb::capsule owner(values.release(), [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
    return {NumpyLine(data, {bytes}, owner), data};
}

constexpr std::pair<const char*, BlockKind> kBlockKinds[] = {
    {"page", BlockKind::page}, {"window", BlockKind::window}, {"state", BlockKind::state}};

BlockKind kind_named(const std::string& name) {
    for (const auto& [known, kind] : kBlockKinds) {
        if (name == known) return kind;
    }
    throw ProgramError("context memory has no blocks of the kind " + name);
}

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

// --- the executor

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
        auto [copy, data] = new_line(context.block_bytes(kind_named(kind)));
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

// --- probes and codecs

// A pool and the tables of an instruction set, for a measurement.
struct Bench {
    Pool pool;
    Machine machine;

    Bench(std::optional<int> threads, const std::string& isa) : pool(cpus_for(threads)) {
        const Kernels& kernels = kernels_named(isa);
        machine = {&kernels, &operations_beside(kernels), pool.size()};
    }
};

class PyProbe {
public:
    PyProbe(std::optional<int> threads, const std::string& isa) : bench_(threads, isa) {}

    std::tuple<int64_t, double> read(Bytes data) {
        const nb::gil_scoped_release unlocked;
        const Measured measured = read_bandwidth(bench_.pool, bench_.machine, data.data(), data.size());
        return {measured.bytes, measured.seconds};
    }

    std::tuple<int64_t, double> experts(nb::handle fields, size_t record_bytes, Bytes records, Ints order) {
        std::vector<FieldSpec> specs;
        for (nb::handle field : fields) specs.push_back(field_spec(field));
        const RecordLayout layout = record_layout(specs, record_bytes);
        const std::vector<int32_t> wanted(order.data(), order.data() + order.size());
        for (const int32_t record : wanted) {
            if (record < 0 || (static_cast<size_t>(record) + 1) * record_bytes > records.size())
                throw std::out_of_range("record " + std::to_string(record) + " is beyond the buffer");
        }
        const nb::gil_scoped_release unlocked;
        const Measured measured = expert_bandwidth(bench_.pool, bench_.machine, layout, records.data(), wanted);
        return {measured.bytes, measured.seconds};
    }

    NumpyRows matmul(const std::string& codec, Bytes packed, int rows, int cols, FloatRows x) {
        const PackedMatrix matrix = {codec_named(codec), rows, cols, packed.data()};
        check_packed(matrix, packed.size());
        if (x.shape(1) != static_cast<size_t>(cols)) throw ProgramError("the columns of x and of the matrix differ");
        auto [y, data] = new_rows(x.shape(0), static_cast<size_t>(rows));
        const nb::gil_scoped_release unlocked;
        freetoken::matmul(bench_.pool, bench_.machine, matrix, x.data(), static_cast<int>(x.shape(0)), data);
        return y;
    }

    static void check_packed(const PackedMatrix& matrix, size_t bytes) {
        if (matrix.rows <= 0 || matrix.cols <= 0) throw ProgramError("an empty matrix");
        const auto wanted = static_cast<size_t>(packed_bytes(matrix.codec, matrix.rows, matrix.cols));
        if (bytes != wanted)
            throw ProgramError("a packed matrix of " + std::to_string(bytes) + " bytes instead of " +
                               std::to_string(wanted));
    }

private:
    Bench bench_;
};

[[noreturn]] void refuse(const BadValue& bad) {
    const std::string block = bad.block < 0 ? "" : ", block " + std::to_string(bad.block);
    throw ProgramError("row " + std::to_string(bad.row) + block + " has " + bad.what);
}

// Packs raw rows; tile i starts at byte i * stride of `out`.
void pack(const std::string& form_name, nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu> raw,
          int64_t cols, WritableBytes out, int64_t stride) {
    const Form form = form_named(form_name);
    const Codec codec = form_info(form).codec;
    const auto rows = static_cast<int64_t>(raw.shape(0));
    if (!valid_cols(codec, cols) || static_cast<int64_t>(raw.shape(1)) != raw_row_bytes(form, cols))
        throw ProgramError("rows of " + std::to_string(raw.shape(1)) + " bytes do not hold " + std::to_string(cols) +
                           " values of " + form_name);
    const int64_t tile = tile_bytes(codec, cols);
    const int64_t needed = rows == 0 ? 0 : (tile_count(rows) - 1) * stride + tile;
    if (stride < tile || stride % tile != 0 || static_cast<int64_t>(out.size()) < needed)
        throw ProgramError("the tiles do not fit the output");
    std::optional<BadValue> bad;
    {
        const nb::gil_scoped_release unlocked;
        const FloatMode mode;
        bad = pack_rows(form, raw.data(), rows, cols, out.data(), stride);
    }
    if (bad) refuse(*bad);
}

NumpyRows unpack(const std::string& codec_name, int rows, int cols, Bytes packed) {
    const PackedMatrix matrix = {codec_named(codec_name), rows, cols, packed.data()};
    PyProbe::check_packed(matrix, packed.size());
    auto [values, data] = new_rows(static_cast<size_t>(rows), static_cast<size_t>(cols));
    const nb::gil_scoped_release unlocked;
    const FloatMode mode;
    for (int64_t row = 0; row < rows; ++row) unpack_row(matrix.codec, packed.data(), row, cols, data + row * cols);
    return values;
}

void angles(Floats inv_freq, float scale, std::tuple<float, int, int> growing, Ints positions, WritableRows cosine,
            WritableRows sine) {
    for (const WritableRows& out : {cosine, sine}) {
        if (out.shape(0) != positions.size() || out.shape(1) != inv_freq.size())
            throw ProgramError("cosine and sine have a row a position and a column a frequency");
    }
    const Growth growth = {std::get<0>(growing), std::get<1>(growing), std::get<2>(growing)};
    if (growth.every < 1) throw ProgramError("growth has steps of at least one position");
    const nb::gil_scoped_release unlocked;
    const FloatMode mode;
    for (size_t row = 0; row < positions.size(); ++row)
        rope_angles({inv_freq.data(), inv_freq.size()}, scale * growth.at(positions.data()[row]), positions.data()[row],
                    cosine.data() + row * inv_freq.size(), sine.data() + row * inv_freq.size());
}

// Values [rows][cols] as raw rows of a form.
NumpyBytes encode(const std::string& form_name, FloatRows values) {
    const Form form = form_named(form_name);
    const auto rows = static_cast<int64_t>(values.shape(0));
    const auto cols = static_cast<int64_t>(values.shape(1));
    if (!can_encode(form)) throw ProgramError("values cannot be rounded to " + form_name + " here");
    if (!valid_cols(form_info(form).codec, cols))
        throw ProgramError(std::to_string(cols) + " values are no row of " + form_name);
    auto [raw, data] = new_rows<uint8_t>(values.shape(0), static_cast<size_t>(raw_row_bytes(form, cols)));
    std::optional<BadValue> bad;
    {
        const nb::gil_scoped_release unlocked;
        const FloatMode mode;
        bad = encode_rows(form, values.data(), rows, cols, data);
    }
    if (bad) refuse(*bad);
    return raw;
}

std::vector<std::string> codec_names() {
    std::vector<std::string> names;
    for (const CodecInfo& info : kCodecs) names.emplace_back(codec_name(info.codec));
    return names;
}

}  // namespace
}  // namespace freetoken

NB_MODULE(_native, m) {
    using namespace freetoken;
    m.doc() = "Operations, kernels and the executor of the engine.";

    m.def("isas", &isa_names);
    m.def("codecs", &codec_names);
    m.def(
        "packed_bytes",
        [](const std::string& codec, int64_t rows, int64_t cols) {
            return packed_bytes(codec_named(codec), rows, cols);
        },
        "codec"_a, "rows"_a, "cols"_a);
    m.def("pack_rows", &pack, "form"_a, "raw"_a, "cols"_a, "out"_a, "stride"_a);
    m.def("encode_rows", &encode, "form"_a, "values"_a);
    m.def("unpack", &unpack, "codec"_a, "rows"_a, "cols"_a, "packed"_a);
    m.def("rope_angles", &angles, "inv_freq"_a, "scale"_a, "growth"_a, "positions"_a, "cosine"_a, "sine"_a);
    m.def("topology", &topology, "root"_a = "/", "allowed"_a = nb::none());
    m.def("placement", &placement, "threads"_a, "root"_a = "/", "allowed"_a = nb::none());

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

    nb::class_<PyProbe>(m, "Probe")
        .def(nb::init<std::optional<int>, const std::string&>(), "threads"_a = nb::none(), "isa"_a = "")
        .def("read", &PyProbe::read, "data"_a)
        .def("experts", &PyProbe::experts, "fields"_a, "record_bytes"_a, "records"_a, "order"_a)
        .def("matmul", &PyProbe::matmul, "codec"_a, "packed"_a, "rows"_a, "cols"_a, "x"_a);

    bind_sim(m);
    bind_hybrid(m);
    bind_io(m);
}
