"""Which files of a repository are taken, and what is said of those that cannot be."""

from __future__ import annotations

import time

import pytest

from engine.base.errors import NotFoundError, UnsupportedError, UsageError
from engine.files.hub.choose import choose_gguf, require_weights
from engine.files.hub.listing import HubFile, Listing

QUANTS = (
    "README.md",
    "Tiny-Q4_K_M.gguf",
    "Tiny-Q8_0.gguf",
    "UD/Tiny-UD-Q4_K_M.gguf",
    "BF16/Tiny-BF16-00001-of-00003.gguf",
    "BF16/Tiny-BF16-00002-of-00003.gguf",
    "BF16/Tiny-BF16-00003-of-00003.gguf",
    "Tiny-Q6_K-00001-of-00002.gguf",  # its second part was never uploaded
    "mmproj-Tiny-f16.gguf",
    "imatrix.gguf",
)


def repo(*paths: str) -> Listing:
    files = tuple(HubFile(path, 1 << 20, "0" * 64, "") for path in paths)
    return Listing("someone/Tiny", "main", "0" * 40, files)


@pytest.mark.parametrize(
    ("wanted", "parts"),
    [
        ("Tiny-Q8_0.gguf", ["Tiny-Q8_0.gguf"]),
        ("q8_0", ["Tiny-Q8_0.gguf"]),
        ("Tiny-UD-Q4_K_M.gguf", ["UD/Tiny-UD-Q4_K_M.gguf"]),
        ("UD/Tiny-UD-Q4_K_M.gguf", ["UD/Tiny-UD-Q4_K_M.gguf"]),
        ("ud-q4", ["UD/Tiny-UD-Q4_K_M.gguf"]),
        ("Tiny-BF16", [f"BF16/Tiny-BF16-0000{part}-of-00003.gguf" for part in (1, 2, 3)]),
        ("BF16/Tiny-BF16-00002-of-00003.gguf", [f"BF16/Tiny-BF16-0000{part}-of-00003.gguf" for part in (1, 2, 3)]),
        ("bf16", [f"BF16/Tiny-BF16-0000{part}-of-00003.gguf" for part in (1, 2, 3)]),
    ],
)
def test_a_gguf_is_chosen_by_a_name_or_a_piece_of_it(wanted: str, parts: list[str]) -> None:
    choice = choose_gguf(repo(*QUANTS), wanted)
    assert choice is not None
    assert [part.path for part in choice.parts] == parts


def test_names_that_claim_many_parts_cost_no_more_than_others() -> None:
    paths = [f"Tiny{i}-00001-of-99999.gguf" for i in range(20_000)]
    listing = repo(*paths, *(f"Whole-{part:05d}-of-05000.gguf" for part in range(1, 5001)))
    started = time.monotonic()
    choice = choose_gguf(listing, "Whole")
    assert choice is not None
    assert len(choice.parts) == 5000
    assert all(listing.find(path) is not None for path in paths)
    assert time.monotonic() - started < 5, "not a second for every few names"


def test_several_ggufs_have_to_be_chosen_from() -> None:
    with pytest.raises(UsageError, match=r"holds 4 models: BF16/Tiny-BF16 \(3\.00 MiB\), .*Tiny-Q8_0\.gguf") as caught:
        choose_gguf(repo(*QUANTS), None)
    assert "--file" in caught.value.remedy
    assert "mmproj" not in caught.value.message
    assert "Q6_K" not in caught.value.message
    with pytest.raises(UsageError, match=r"could be any of: .*Tiny-Q4_K_M\.gguf"):
        choose_gguf(repo(*QUANTS), "Q4_K_M")


def test_a_gguf_that_is_not_there() -> None:
    with pytest.raises(NotFoundError, match=r"no GGUF file 'Tiny-Q8_1\.gguf'.*Did you mean Tiny-Q8_0\.gguf"):
        choose_gguf(repo(*QUANTS), "Tiny-Q8_1.gguf")
    with pytest.raises(NotFoundError, match="no GGUF at all"):
        choose_gguf(repo("config.json", "model.safetensors"), "Q8_0")


def test_the_only_gguf_is_taken_and_safetensors_come_first() -> None:
    only = choose_gguf(repo("Tiny-Q8_0.gguf", "mmproj-x.gguf"), None)
    assert only is not None
    assert only.name == "Tiny-Q8_0.gguf"
    both = repo("config.json", "model.safetensors", "Tiny-Q8_0.gguf", "Tiny-Q4_0.gguf")
    assert choose_gguf(both, None) is None
    assert choose_gguf(both, "Q4_0") is not None
    require_weights(both)


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (["config.json", "pytorch_model-00001-of-00002.bin"], r"weights as pytorch_model-00001-of-00002\.bin"),
        (["config.json", "consolidated.00.pth"], r"consolidated\.00\.pth, a format that can run code"),
        (["config.json", "model.onnx"], "neither safetensors nor GGUF"),
        ([], "neither safetensors nor GGUF"),
        (["unet/diffusion.safetensors"], "neither safetensors nor GGUF"),
        (["adapter_model.safetensors"], r"no config\.json"),
    ],
)
def test_other_weights_are_refused_with_a_sentence(paths: list[str], words: str) -> None:
    listing = repo(*paths)
    assert choose_gguf(listing, None) is None
    with pytest.raises(UnsupportedError, match=words) as caught:
        require_weights(listing)
    assert caught.value.remedy
