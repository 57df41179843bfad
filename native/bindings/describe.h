// From Python's dataclasses (engine/program/ir.py, engine/files/ftw/opening.py) and arrays to descriptions.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "bindings/arrays.h"
#include "exec/program.h"
#include "kernels/kernels.h"

namespace freetoken {

// Keeps alive what is borrowed through it.
class Lender {
public:
    Bytes borrow(nanobind::handle buffer) {
        kept_.push_back(nanobind::cast<Bytes>(buffer));
        return kept_.back();
    }

private:
    std::vector<Bytes> kept_;
};

// Throw ProgramError for a name that no codec or raw form has.
Codec codec_named(const std::string& name);
Form form_named(const std::string& name);

// A matrix over borrowed bytes. Throws ProgramError where they are not as many as it has.
PackedMatrix packed_matrix(const std::string& codec, int rows, int cols, const Bytes& packed);

// An `engine.program.ir.Program`, an `engine.files.ftw.opening.Tensor`, `Bank` and field of a bank.
ProgramSpec program_spec(nanobind::handle program);
WeightSpec weight_spec(nanobind::handle tensor, Lender& lender);
BankSpec bank_spec(nanobind::handle bank, Lender& lender);
FieldSpec field_spec(nanobind::handle field);

}  // namespace freetoken
