"""models.toml: what an entry means, what a wrong one gets, and that ours agree with themselves and the families."""

import pytest

from engine.base.errors import CorruptFileError, NotFoundError, UnsupportedError
from engine.files.hub.address import HubRepo, is_hub_id
from engine.files.pulling.catalogue import PackageFile, find_model, parse_catalogue, read_catalogue, require_runnable
from engine.files.sources.upcycle import Upcycle
from engine.spec.families import FAMILIES, is_known
from tests.unit.catalogue_entry import ENTRY, HUB_ENTRY

FORMATS = {"bf16", "q4_1", "fp8", "nvfp4", "mxfp4", "int4"}


def test_an_entry_is_read_as_it_stands() -> None:
    model = parse_catalogue(ENTRY, "models.toml")["tiny"]
    assert model.source == PackageFile("tiny-package", "1.0", "tiny_package/tiny.gguf", 12, "0" * 64)
    assert (model.upcycle, model.sampling) == (Upcycle(4, 1), {"temperature": 0.7, "top_k": 5})


def test_what_is_not_known_may_be_left_out() -> None:
    model = parse_catalogue(HUB_ENTRY, "models.toml")["remote"]
    assert model.source == HubRepo("some-owner/Some.Model_1", "main", None)
    assert (model.licence, model.parameters, model.download, model.size, model.memory) == ("", 0, 0, 0, 0)
    file = parse_catalogue(HUB_ENTRY.replace('revision = "main"', 'revision = "v1", file = "a.gguf"'), "x")["remote"]
    assert file.source == HubRepo("some-owner/Some.Model_1", "v1", "a.gguf")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("[models.tiny]", "[models.tiny", "not TOML"),
        ("parameters = 1000", "parameters = -1", "models.*'tiny'.*parameters is -1"),
        ("active_parameters = 100", "active_parameters = 1001", "'tiny'.*more parameters than there are"),
        ('family = "mixtral"', "", "lacks 'family'"),
        ('kind = "pypi"', 'kind = "ftp"', "kind 'ftp'"),
        ("0" * 64, "0" * 63, "sha256"),
        ("tiny_package/tiny.gguf", "../tiny.gguf", "leaves the package"),
        ("tiny_package/tiny.gguf", "/etc/passwd", "leaves the package"),
        ("temperature = 0.7", "temperature = -1", "temperature: -1 is not within 0 and 100"),
        ("temperature = 0.7", "warmth = 1", "'warmth'"),
        ("temperature = 0.7", "temperature = nan", "temperature: nan is not within"),
        ("some-owner/", "", "'remote'.*owner/name"),
        (', revision = "main"', "", "lacks 'revision'"),
    ],
)
def test_a_wrong_entry_is_named(old: str, new: str, expected: str) -> None:
    assert old in ENTRY + HUB_ENTRY
    with pytest.raises(CorruptFileError, match=expected):
        parse_catalogue((ENTRY + HUB_ENTRY).replace(old, new), "models.toml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("owner/name", True),
        ("Qwen/Qwen3-30B-A3B", True),
        ("a_b/c.d-e", True),
        ("name", False),
        ("a/b/c", False),
        ("/name", False),
        ("./name", False),
        ("../name", False),
        ("owner/..", False),
        ("owner/a..b", False),
        ("owner/a--b", False),
        ("owner/", False),
        ("~/models", False),
        ("owner/näme", False),
        ("owner/name\n", False),
    ],
)
def test_what_the_hub_takes_for_an_id(text: str, expected: bool) -> None:
    assert is_hub_id(text) == expected


def test_the_catalogue_has_demo_and_knows_what_is_meant() -> None:
    catalogue = read_catalogue()
    assert find_model(catalogue, "demo").upcycle == Upcycle(8, 2)
    with pytest.raises(NotFoundError, match=r"Did you mean demo\?"):
        find_model(catalogue, "deno")
    with pytest.raises(NotFoundError, match="list --catalogue"):
        find_model(catalogue, "zzzzzz")


def test_a_family_to_come_is_refused_by_name() -> None:
    catalogue = parse_catalogue(HUB_ENTRY + ENTRY, "models.toml")
    require_runnable(catalogue["remote"])
    strange = parse_catalogue(HUB_ENTRY.replace("qwen3_moe", "qwen9_moe"), "models.toml")["remote"]
    with pytest.raises(UnsupportedError, match="family qwen9_moe"):
        require_runnable(strange)


@pytest.mark.parametrize("name", read_catalogue())
def test_entries_agree_with_themselves(name: str) -> None:
    model = read_catalogue()[name]
    assert is_known(model.family)
    assert model.format in FORMATS
    assert name == name.lower()
    if model.active_parameters:
        assert model.parameters >= model.active_parameters
    if model.family in FAMILIES and FAMILIES[model.family].moe is None:
        assert model.active_parameters == model.parameters
    if model.memory:
        assert model.memory >= max(model.size, model.vram)
        assert model.vram > 0
    if model.size and model.format != "q4_1":  # nothing is requantised; tiles and headers cost a few per cent
        assert 0.7 * model.download < model.size < 1.1 * model.download


def test_no_two_names_are_the_same_source() -> None:
    sources = [model.source for model in read_catalogue().values()]
    assert len(set(sources)) == len(sources)
