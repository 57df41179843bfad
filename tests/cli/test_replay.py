"""`freetoken replay`: its document, its tables, and a sentence for everything that is not a trace."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from engine.experts.machines import MACHINES
from engine.experts.policies import POLICIES
from tests.cli.harness import Home
from tests.unit.routing import drifting, recorded_trace, trace_of, write


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two requests of 5 and 35 tokens of 3 layers with 16 experts, 2 a token; the first has a prompt."""
    return write(tmp_path / "trace.jsonl.gz", trace_of(drifting(60), 16, "p" * 10 + "d" * 50, "a" * 15 + "b" * 45))


def _json(home: Home, *args: str) -> dict[str, Any]:
    done = home.run_here("replay", *args, "--json")
    assert (done.returncode, done.stdout[:1]) == (0, "{"), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_every_policy_is_replayed(home: Home, trace: Path) -> None:
    document = _json(home, str(trace), "--experts", "25%", "--warmup", "2")
    assert document["version"] == 1
    assert document["slots"] == 12
    assert document["warmup"] == 2
    about = document["trace"]
    assert (about["decode_tokens"], about["prefill_tokens"], about["origin"]) == (50, 10, "synthetic")
    assert tuple(document["policies"]) == POLICIES
    for name, found in document["policies"].items():
        assert 0 < found["miss_rate"] <= 1
        assert found["tokens"] == (3 if name == "prefill" else 48)
        assert len(found["misses_by_layer"]) == 3
        assert sum(found["m_shares"]) == pytest.approx(1)
        assert found["misses_per_layer"] == pytest.approx(found["miss_rate"] * 2)
        assert "rules" not in found
    assert "machine" not in document
    rates = {name: found["miss_rate"] for name, found in document["policies"].items()}
    assert rates["clairvoyant"] < rates["lru"]


def test_one_policy_alone(home: Home, trace: Path) -> None:
    assert list(_json(home, str(trace), "--policy", "lru")["policies"]) == ["lru"]
    assert list(_json(home, str(trace), "--policy", "static,lfu")["policies"]) == ["static", "lfu"]


def test_a_machine_adds_both_rules(home: Home, trace: Path) -> None:
    document = _json(home, str(trace), "--machine", "rtx4090-server", "--policy", "lru,static")
    machine = document["machine"]
    assert machine["name"] == "rtx4090-server"
    assert machine["predicted"] is True
    assert machine["record_bytes"] == 1769472
    assert machine["fraction"] == pytest.approx(0.4, abs=0.01)
    for found in document["policies"].values():
        assert list(found["rules"]) == ["nearest", "carry", "default", "fill"]
        times = {rule: each["seconds_per_token"] for rule, each in found["rules"].items()}
        assert all(seconds > 0 for seconds in times.values())
        assert found["better_rule"] == min(("nearest", "carry"), key=lambda rule: times[rule])
        assert found["rules"]["fill"]["miss_rate"] == found["miss_rate"]
        assert found["rules"]["fill"]["cpu_per_token"] == 0
        assert found["rules"]["carry"]["cpu_per_token"] > 0
    larger = _json(home, str(trace), "--machine", "rtx4090-server", "--policy", "lru", "--record", "16M")
    assert larger["machine"]["record_bytes"] == 16 << 20
    assert (
        larger["policies"]["lru"]["rules"]["fill"]["seconds_per_token"]
        > 5 * document["policies"]["lru"]["rules"]["fill"]["seconds_per_token"]
    )


def test_the_size_that_a_trace_tells_is_taken(home: Home, tmp_path: Path) -> None:
    path = write(tmp_path / "t", trace_of(drifting(20), 16, record_bytes=1 << 20))
    document = _json(home, str(path), "--experts", "12M", "--policy", "lru", "--machine", "rtxpro6000")
    assert document["slots"] == 12
    assert document["machine"]["record_bytes"] == 1 << 20


def test_people_get_tables(home: Home, trace: Path) -> None:
    done = home.run_here("replay", str(trace), "--machine", "rtx4090-server")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert "made up, synthetic: 3 layers of 16 experts, 2 a token; 17 of 48 in slots" in lines[0]
    assert [line.split()[0] for line in lines[3:8]] == list(POLICIES)
    assert "RTX 4090 server" in done.stdout
    assert "predicted" in done.stdout
    assert "synthetic: nothing follows from its locality" in done.stderr
    plain = home.run_here("replay", str(trace))
    assert "predicted" not in plain.stdout


def test_quiet_is_names_and_rates(home: Home, trace: Path) -> None:
    done = home.run_here("replay", str(trace), "-q", "--policy", "lru,static")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [name for name, _ in rows] == ["lru", "static"]
    assert all(0 < float(rate) <= 1 for _, rate in rows)


def test_a_trace_without_prompts_leaves_the_policy_out_that_needs_them(home: Home, tmp_path: Path) -> None:
    path = write(tmp_path / "t", trace_of(drifting(20), 16))
    document = _json(home, str(path))
    assert "prefill" not in document["policies"]
    assert "prompt" in document["skipped"]["prefill"]
    alone = home.run_here("replay", str(path), "--policy", "prefill")
    assert alone.returncode == 1
    assert "prompt" in alone.stderr


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--policy", "lruu"], 2, "Did you mean lru?"),
        (["--policy", ""], 2, "no policy"),
        (["--machine", "rtx4090"], 2, "Did you mean rtx4090-server"),
        (["--experts", "0"], 2, "--experts 2, of 48"),
        (["--experts", "1"], 2, "fewer than the 2 experts"),
        (["--experts", "49"], 2, "more than the 48"),
        (["--experts", "101%"], 2, "--experts"),
        (["--experts", "many"], 2, "--experts"),
        (["--experts", "1G"], 2, "--record"),
        (["--warmup", "50"], 2, "--warmup 49"),
        (["--warmup", "-1"], 2, "--warmup"),
        (["--warmup", "1.5"], 2, "--warmup"),
        (["--warmup", "٣"], 2, "--warmup"),
        (["--record", "3"], 2, "--record"),
        (["--plot", "x.txt"], 2, ".png"),
        (["--plot", "/nowhere/at/all/x.png"], 2, "no folder"),
        (["--experts", "", "--machine", "none"], 2, "machine"),
    ],
    ids=str,
)
def test_wrong_usage_is_a_sentence(home: Home, trace: Path, args: list[str], code: int, says: str) -> None:
    done = home.run_here("replay", str(trace), *args)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def _cut(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (lambda whole: b"", 1, "empty"),
        (lambda whole: b"hello\n", 1, "not valid JSON"),
        (lambda whole: b"\x1f\x8bhello", 1, "trace"),
        (lambda whole: gzip.compress(whole)[:-40], 1, "--partial"),
        (lambda whole: gzip.compress(whole)[:30], 1, "cut short"),
        (lambda whole: whole[:-9], 1, "cut short after 59 tokens"),
        (lambda whole: whole.replace(b'"version": 1', b'"version": 9'), 1, "version 9"),
        (lambda whole: whole.replace(b'"moe_layers": 3', b'"moe_layers": 4'), 1, "line 2 has experts for 3 layers"),
        (lambda whole: whole.replace(b'"experts": 16', b'"experts": 3'), 1, "there are 0 to 2"),
        (lambda whole: whole.replace(b'"top_k": 2', b'"top_k": 3'), 1, "where a token has 3"),
        (lambda whole: whole.splitlines(keepends=True)[0], 1, "no decode tokens"),
        (lambda whole: b"".join(whole.splitlines(keepends=True)[:6]), 1, "no decode tokens"),
    ],
)
def test_a_bad_file_is_a_sentence(home: Home, trace: Path, tmp_path: Path, change: Any, code: int, says: str) -> None:
    path = _cut(tmp_path / "bad.trace", change(gzip.decompress(trace.read_bytes())))
    done = home.run_here("replay", str(path))
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_what_there_is_of_a_cut_trace_can_be_used(home: Home, trace: Path, tmp_path: Path) -> None:
    path = _cut(tmp_path / "cut", gzip.decompress(trace.read_bytes())[:-9])
    document = _json(home, str(path), "--partial", "--policy", "lru")
    assert document["trace"]["decode_tokens"] == 49
    assert "cut short after 59 tokens" in document["trace"]["cut"]


def test_an_absent_file_is_3(home: Home, tmp_path: Path) -> None:
    done = home.run_here("replay", str(tmp_path / "absent"))
    assert (done.returncode, done.stdout) == (3, "")
    assert "absent is not there.\nRecord one: freetoken bench MODEL --trace FILE\n" in done.stderr
    assert home.run_here("replay", str(tmp_path)).returncode == 1


def test_it_draws(home: Home, trace: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, magic in (("misses.png", b"\x89PNG"), ("misses.svg", b"<?xml")):
        document = _json(home, str(trace), "--policy", "lru,static", "--plot", str(tmp_path / name))
        assert (tmp_path / name).read_bytes().startswith(magic)
        assert document["plot"] == str(tmp_path / name)
        curve = document["curves"]["lru"]
        assert [percent for percent, _ in curve] == sorted(percent for percent, _ in curve)
        assert curve[0][1] > curve[-1][1]


def test_without_matplotlib_the_extra_is_named(home: Home, trace: Path, tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('absent')")
    path = f"{tmp_path}:{home.environment['PYTHONPATH']}"
    done = home.run("replay", str(trace), "--plot", "x.png", PYTHONPATH=path)
    assert done.returncode == 1
    assert "freetoken-cli[plot]" in done.stderr


def test_the_recorded_trace(home: Home) -> None:
    path = recorded_trace()
    found = _json(home, str(path), "--experts", "37%", "--warmup", "128")["policies"]
    assert found["lru"]["miss_rate"] == pytest.approx(0.137, abs=0.001)
    assert found["clairvoyant"]["miss_rate"] < found["lru"]["miss_rate"] < found["prefill"]["miss_rate"]
    assert found["prefill"]["miss_rate"] < found["static"]["miss_rate"]


def test_machines_are_named_in_the_error(home: Home, trace: Path) -> None:
    done = home.run_here("replay", str(trace), "--machine", "zx81")
    assert all(name in done.stderr for name in MACHINES)
