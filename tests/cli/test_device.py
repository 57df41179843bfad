"""The program on a simulated GPU, from the command to the emulated kernels: answers, sizes, sentences, exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pexpect
import pytest

from tests.cli.harness import PROGRAM, Home

QUICK = ("--greedy", "--max-tokens", "8")
SIM = ("--device", "sim")


def _state(home: Home) -> dict[str, object]:
    (model,) = json.loads(home.run_here("ps", "--json").stdout)["models"]
    state: dict[str, object] = model
    return state


def test_run_ps_resize_and_statistics(alive: Home) -> None:
    on_cpu = alive.run_here("run", "tiny", "hello", *QUICK, "--device", "cpu")
    done = alive.run_here("run", "tiny", "hello", *QUICK, *SIM, "--experts", "50%", "--kv", "512", "--verbose")
    assert done.returncode == 0, done.stderr
    assert done.stdout == on_cpu.stdout
    assert re.search(
        r"^tiny on sim, \d+ threads, experts 4 slots \(50%, .*\), no hit rate yet, kv 512", done.stderr, re.M
    )
    assert done.stderr.count("has no profile yet") == 1
    assert re.search(r"^expert hits +\d+\.\d%, \d\.\d misses a layer and step$", done.stderr, re.M)
    assert re.search(r"^misses +\d+ filled, \d+ computed on the CPU \(\d+% of experts\)$", done.stderr, re.M)
    assert re.search(r"^split +f = 0\.\d\d", done.stderr, re.M)
    assert re.search(r"^(link|CPU experts) +\d+\.\d GB/s \(virtual, rtx4090-server\)$", done.stderr, re.M)
    again = alive.run_here("run", "tiny", "hello", *QUICK, *SIM, "--experts", "50%")
    assert re.search(r"experts 4 slots \(50%, .*\), hit rate \d+%, kv", again.stderr)
    assert "has no profile" not in again.stderr
    line = alive.run_here("ps").stdout.splitlines()[1].split()
    assert line[3:5] == ["sim", "50"]
    assert line[5].isdigit()
    resized = alive.run_here("resize", "tiny", "--experts", "2", "--kv", "1k")
    assert resized.returncode == 0, resized.stderr
    assert re.search(r"kv 512 .* → 1k .*, experts 4 slots \(50%, .*\) → 2 slots \(25%, .*\), in \d", resized.stdout)
    document = json.loads(alive.run_here("resize", "tiny", "--experts", "0", "--json").stdout)
    assert (document["before"]["expert_slots"], document["after"]["expert_slots"]) == (2, 0)
    uncached = alive.run_here("run", "tiny", "hello", *QUICK, *SIM)
    assert "experts no slots, kv" in uncached.stderr
    assert uncached.stdout == on_cpu.stdout


def test_a_share_for_context_moves_memory_from_experts(alive: Home) -> None:
    alive.run_here("run", "tiny", "hello", *QUICK, *SIM, "--kv", "512", FREETOKEN_SIM_MEMORY="64M")
    before = _state(alive)
    done = alive.run_here("resize", "tiny", "--kv", "60%")
    assert done.returncode == 0, done.stderr
    after = _state(alive)
    assert after["kv_tokens"] > before["kv_tokens"]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("flags", "code", "sentence"),
    [
        (("--experts", "1"), 4, "--experts 1 slot is too little"),
        (("--experts", "1"), 4, "Give --experts 2 or more, or --experts 0 to cache none."),
        (("--kv", "9000G"), 4, "Give --kv"),
        (("--experts", "many"), 2, "--experts: 'many' is not room for experts"),
        (("--kv", "100%"), 2, "--kv: '100%' is not a share"),
        (("--device", "tpu"), 2, "'tpu' is not one of auto, cpu, cuda, sim."),
        (("--device", "GPU"), 2, "Did you mean cuda?"),
        (("--device", "simm"), 2, "Did you mean sim?"),
        (("--device", "cuda"), 1, "--device cuda"),
    ],
)
def test_what_cannot_be_had_is_a_sentence_with_its_exit_code(
    alive: Home, flags: tuple[str, str], code: int, sentence: str
) -> None:
    done = alive.run_here("run", "tiny", "hello", *QUICK, *SIM, *flags)
    assert (done.returncode, sentence in done.stderr) == (code, True), done.stderr
    assert done.stdout == ""


def test_a_card_below_the_floor_is_told_by_its_parts(alive: Home) -> None:
    done = alive.run_here("run", "tiny", "hello", *QUICK, *SIM, FREETOKEN_SIM_MEMORY="3M")
    assert done.returncode == 4
    assert re.search(r"The device lacks .*: weights take .*, buffers .* and the smallest context memory", done.stderr)
    bad = alive.run_here("run", "tiny", "hello", *QUICK, *SIM, "--estimate", FREETOKEN_SIM_MEMORY="some")
    assert (bad.returncode, "FREETOKEN_SIM_MEMORY: 'some'" in bad.stderr) == (2, True)


def test_an_estimate_states_every_part_of_the_card(alive: Home) -> None:
    wanted = ("--experts", "50%", "--kv", "512")
    document = json.loads(alive.run_here("run", "tiny", "--estimate", "--json", *SIM, *wanted).stdout)
    parts = document["vram_parts"]
    used = parts["weights"] + parts["buffers"] + parts["kv"] + parts["experts"]
    assert document["vram"] == used
    assert parts["total"] == used + parts["kept"] + parts["remainder"]
    assert (parts["slots"], parts["share"]) == (4, 0.5)
    table = alive.run_here("run", "tiny", "--estimate", *SIM, *wanted).stdout
    for label in ("VRAM", "weights", "buffers", "kv", "experts", "left", "largest context"):
        assert re.search(rf"^ *{label}  ", table, re.M), label
    on_cpu = json.loads(alive.run_here("run", "tiny", "--estimate", "--json").stdout)
    assert (on_cpu["vram"], on_cpu["vram_parts"], on_cpu["device"]) == (0, None, "cpu")
    small = alive.run_here("run", "tiny", "--estimate", *SIM, FREETOKEN_SIM_MEMORY="3M")
    assert small.returncode == 4
    assert "no: The device lacks" in small.stdout


def test_doctor_tells_devices_and_what_may_be_pinned(home: Home) -> None:
    checks = {check["name"]: check for check in json.loads(home.run_here("doctor", "--json").stdout)["checks"]}
    assert "sim" in checks["devices"]["detail"]
    memlock = checks["memlock"]
    assert "ulimit -l" in memlock["detail"]
    assert (memlock["status"] == "ok") == (memlock["remedy"] == "")


def test_serve_says_what_is_in_force_and_serves_metrics(alive: Home) -> None:
    server = alive.start("serve", "tiny", "--port", "0", *SIM, "--experts", "50%")
    assert server.stdout is not None
    url = re.search(r"http://[\d.]+:\d+", server.stdout.readline())
    assert url is not None
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    assert httpx.post(f"{url[0]}/v1/chat/completions", json=body, timeout=60).status_code == 200
    text = httpx.get(f"{url[0]}/metrics").text
    assert re.search(r'^freetoken_expert_slots\{model="tiny"\} 4\.0$', text, re.M)
    assert re.search(r'^freetoken_expert_fills_total\{model="tiny"\} \d', text, re.M)
    server.terminate()
    _, err = server.communicate(timeout=30)
    assert server.returncode == 0
    assert re.search(r"tiny on sim, .*experts 4 slots \(50%", err)


def test_the_repl_resizes_and_tells_statistics(alive: Home) -> None:
    child = pexpect.spawn(
        PROGRAM[0],
        [*PROGRAM[1:], "run", "tiny", *SIM, "--experts", "50%", "--max-tokens", "4"],
        env={**alive.environment, "PROMPT_TOOLKIT_NO_CPR": "1"},
        cwd=str(alive.folder),
        encoding="utf-8",
        timeout=30,
        dimensions=(40, 240),
    )
    child.expect_exact(">>> ")
    child.send("/resize experts 2\r")
    child.expect(r"experts 4 slots \(50%.*→ 2 slots \(25%")
    child.expect_exact(">>> ")
    child.send("hello\r")
    child.expect_exact(">>> ")
    child.send("/stats\r")
    child.expect(r"expert hits +\d")
    child.expect(r"split +f = ")
    child.send("/show\r")
    child.expect(r"card +simulated device")
    child.expect(r"experts +2 slots \(25%")
    child.send("\x04")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_bench_records_routing_and_runs_it_again(alive: Home, tmp_path: Path) -> None:
    trace = tmp_path / "tiny.jsonl.gz"
    texts = tmp_path / "texts"
    texts.write_text("one two\n\nthree\n")
    done = alive.run_here(
        "bench", "tiny", "--trace", str(trace), "--texts", str(texts), "--tokens", "6", "--json", *SIM
    )
    assert done.returncode == 0, done.stderr
    recorded = json.loads(done.stdout)
    assert (recorded["origin"], recorded["requests"], recorded["top_k"]) == ("recorded", 2, 2)
    assert 0 < recorded["decode_tokens"] <= 12
    twice = alive.run_here("bench", "tiny", "--trace", str(trace))
    assert (twice.returncode, "is there already" in twice.stderr) == (2, True)
    tokens = str(recorded["decode_tokens"] - 1)
    for device in ("cpu", "sim"):
        flags = ("--routing", str(trace), "--tokens", tokens, "--warmup", "1", "--device", device, "--experts", "50%")
        result = json.loads(alive.run_here("bench", *flags, "--json").stdout)
        assert result["version"] == 1
        assert result["shape"]["experts"] == recorded["experts"]
        assert result["tokens_per_second"] > 0
        assert (result["hit_rate"] is None) == (device == "cpu")
        table = alive.run_here("bench", *flags)
        assert "random weights" in table.stdout
    assert 0 <= result["hit_rate"] <= 1
    assert result["fills_per_layer"] <= result["misses_per_layer"]
    too_many = alive.run_here("bench", "--routing", str(trace), "--tokens", "5000")
    assert too_many.returncode == 4
    assert f"Give --warmup and --tokens that are {recorded['decode_tokens']} together." in too_many.stderr


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ((), 2),
        (("tiny", "--routing", "x"), 2),
        (("--routing", "x", "--trace", "y"), 2),
        (("tiny", "--texts", "x"), 2),
        (("tiny", "--trace", "x", "--warmup", "3"), 2),
        (("tiny", "--trace", "x", "--depths", "3"), 2),
        (("--routing", "nowhere.gz"), 3),
        (("tiny", "--trace", "/nowhere/at/all"), 3),
        (("tiny", "--trace", "x", "--texts", "nowhere"), 3),
        (("tiny", "--tokens", "3"), 2),
    ],
)
def test_bench_flags_that_do_not_go_together(alive: Home, flags: tuple[str, ...], code: int) -> None:
    done = alive.run_here("bench", *flags)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_bench_measures_a_model_on_the_device(alive: Home) -> None:
    plan = ("--prompts", "none", "--depths", "0", "--decode-tokens", "4", "--repeat", "1")
    done = alive.run_here("bench", "tiny", *plan, "--json", *SIM, "--experts", "50%")
    assert "A simulated device reads a few tokens a second" in done.stderr
    result = json.loads(done.stdout)
    assert (result["device"], result["experts"]["slots"]) == ("sim", 4)
    assert 0 < result["hit_rate"] < 1
