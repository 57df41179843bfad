"""Whether there is a negative control for all that a schema can say."""

from __future__ import annotations

import pytest

from .axes import SPEC_CHANGES
from .axes.fields import NEEDS_NO_AXIS, changed_fields, is_fixed_by_weights, values_of
from .sample import sample, specs, traits


def test_every_field_that_differs_between_models_has_an_axis() -> None:
    """Of sizes the shapes of tensors take care: with others no weights would load."""
    every = specs().values()
    controlled = set(NEEDS_NO_AXIS)
    for spec in every:
        for change in SPEC_CHANGES.values():
            controlled.update(changed_fields(spec, change(spec) or spec))
    differing = {field: values for field, values in values_of(every).items() if len(values) > 1}
    missing = [
        f"{'.'.join(field)} is {' or '.join(sorted(map(repr, values)))}"
        for field, values in differing.items()
        if field not in controlled and not is_fixed_by_weights(every, field, values)
    ]
    assert not missing, f"add a change to tests/parity/axes, or a reason to NEEDS_NO_AXIS: {'; '.join(missing)}"


@pytest.mark.parametrize("field", NEEDS_NO_AXIS, ids=".".join)
def test_what_needs_no_axis_is_a_field_of_some_model(field: tuple[str, str]) -> None:
    assert len(values_of(specs().values())[field]) > 1


def test_the_sample_has_all_that_any_case_has() -> None:
    having = {name: traits(spec) for name, spec in specs().items()}
    assert frozenset().union(*(having[name] for name in sample())) == frozenset().union(*having.values())
    assert len(sample()) < len(having) / 2
