"""What a pull is said to take, where the source cannot be looked into before it is fetched."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from engine.files.conversion.job import plan_job
from engine.files.conversion.requantise import ENCODED
from engine.files.pulling.catalogue import PackageFile
from engine.files.pulling.pull import pull_cost, recipe_of
from engine.files.pulling.target import find_target
from engine.files.sources.opening import open_checkpoint
from tests.unit.converting import write_tokenizer


@pytest.mark.parametrize("codec", [None, *ENCODED])
def test_the_demo_is_no_larger_than_was_said(codec: str | None) -> None:
    target = find_target("demo")
    assert isinstance(target.source, PackageFile)
    try:
        path = Path(str(metadata.distribution(target.source.package).locate_file(target.source.file)))
    except metadata.PackageNotFoundError:
        pytest.skip(f"{target.source.package} is not installed")
    job = plan_job(open_checkpoint(path), recipe_of(target, codec))
    said = pull_cost(target, codec, write_tokenizer=write_tokenizer).disk
    assert 0.6 * said < job.plan.total_bytes <= said
