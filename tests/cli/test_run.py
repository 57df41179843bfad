"""One-shot `run` in pipes, against the fake front."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.harness import FakeFront, Home, wait_for


def _messages(front: FakeFront) -> list[dict[str, str]]:
    body = front.requests("/v1/chat/completions")[-1]
    return [dict(message) for message in body["messages"]]


def test_stdout_is_the_answer_and_stderr_names_device_and_kv(home: Home, ready: FakeFront) -> None:
    done = home.run_here("run", "demo", "two words")
    assert (done.returncode, done.stdout) == (0, "TWO WORDS \n")
    assert done.stderr == "demo on cpu, 2 threads, kv 8k (7.81 MiB), context 8192\n"


def test_quiet_says_nothing_else(home: Home, ready: FakeFront) -> None:
    assert home.run_here("run", "demo", "hello", "-q").stderr == ""


def test_stdin_goes_before_the_prompt(home: Home, ready: FakeFront) -> None:
    home.run_here("run", "demo", "Explain this.", stdin="line 1\nline 2\n")
    assert _messages(ready) == [{"role": "user", "content": "line 1\nline 2\n\nExplain this."}]


@pytest.mark.parametrize("args", [[], ["-"]])
def test_stdin_alone_is_the_prompt(home: Home, ready: FakeFront, args: list[str]) -> None:
    assert home.run_here("run", "demo", *args, stdin="hello there\n").stdout == "HELLO THERE \n"


def test_characters_that_stdout_lacks_do_not_end_the_answer(home: Home, ready: FakeFront) -> None:
    done = home.run("run", "demo", "日本 café end", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, "?? CAF? END \n")


def test_arguments_are_utf_8_whatever_the_locale(home: Home, ready: FakeFront) -> None:
    plain = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert home.run("run", "demo", "café", "--system", "naïf", **plain).returncode == 0
    assert [message["content"] for message in _messages(ready)] == ["naïf", "café"]


@pytest.mark.parametrize(("args", "what"), [(["caf\udce9"], "prompt"), (["hi", "--system", "\udcff"], "--system")])
def test_arguments_that_are_no_text_are_refused(home: Home, ready: FakeFront, args: list[str], what: str) -> None:
    done = home.run_here("run", "demo", *args)
    assert done.returncode == 2
    assert f"{what} is not UTF-8 text" in done.stderr


def test_nothing_to_ask_is_a_usage_error(home: Home, ready: FakeFront) -> None:
    done = home.run_here("run", "demo")
    assert done.returncode == 2
    assert "There is no prompt." in done.stderr


def test_binary_stdin_is_refused(home: Home, ready: FakeFront) -> None:
    done = home.start("run", "demo", stdin=subprocess.PIPE)
    assert done.stdin is not None
    done.stdin.buffer.write(b"\xff\xfe\x00")
    _, err = done.communicate(timeout=20)
    assert done.returncode == 2
    assert "not UTF-8" in err


def test_a_pipe_that_never_ends_is_refused(home: Home, ready: FakeFront) -> None:
    with open("/dev/zero", "rb") as endless:
        done = home.start("run", "demo", stdin=endless)
        _, err = done.communicate(timeout=60)
    assert (done.returncode, err) == (
        4,
        "Error: stdin is longer than 32.0 MiB, the most of a request.\nPipe in less.\n",
    )


def test_sampling_and_system_reach_the_request(home: Home, ready: FakeFront) -> None:
    flags = ["--greedy", "--seed", "3", "--top-k", "5", "--top-p", "0.5", "--min-p", "0.1", "--max-tokens", "7"]
    flags += ["--thinking-budget", "100"]
    home.run_here("run", "demo", "hi", "--system", "Be brief.", *flags)
    body = ready.requests("/v1/chat/completions")[-1]
    wanted = {"temperature": 0, "seed": 3, "top_k": 5, "top_p": 0.5, "min_p": 0.1, "max_tokens": 7}
    wanted |= {"thinking_budget": 100}
    assert {name: body[name] for name in wanted} == wanted
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("generation_config", "flags", "expected"),
    [
        (None, [], {"temperature": 0.7, "top_p": 0.9}),
        ({"eos_token_id": 2}, [], {"temperature": 0.7, "top_p": 0.9}),
        ({"do_sample": True}, [], {}),
        ({"temperature": 0.3}, [], {}),
        ({"top_k": None, "top_p": 0.5}, [], {}),
        (None, ["--greedy"], {"temperature": 0}),
        (None, ["--top-k", "3"], {"top_k": 3}),
        (None, ["--seed", "4"], {"temperature": 0.7, "top_p": 0.9, "seed": 4}),
    ],
)
def test_a_gentle_default_holds_where_nobody_says_how_to_sample(
    home: Home, ready: FakeFront, generation_config: dict[str, Any] | None, flags: list[str], expected: dict[str, Any]
) -> None:
    if generation_config is not None:
        (home.paths.store / "demo/generation_config.json").write_text(json.dumps(generation_config))
    home.run_here("run", "demo", "hi", *flags)
    body = ready.requests("/v1/chat/completions")[-1]
    assert {
        name: body[name] for name in body if name not in ("model", "messages", "stream", "stream_options")
    } == expected


def test_flags_are_explicit_and_the_environment_gives_defaults(home: Home, ready: FakeFront) -> None:
    home.run_here("run", "demo", "hi", "--kv", "16k", FREETOKEN_THREADS="2", FREETOKEN_KV="1k")
    load = ready.requests("/control/load")[0]
    assert load["kv_tokens"] == 16384
    assert load["defaults"]["threads"] == 2
    assert "kv_tokens" not in load["defaults"]
    assert "threads" not in load


def test_a_short_keep_alive_begins_after_the_answer(home: Home, ready: FakeFront) -> None:
    assert home.run_here("run", "demo", "hi", "--keep-alive", "0").returncode == 0
    first, last = ready.requests("/control/load")
    assert first["keep_alive"] >= 5
    assert last == {"model": "demo", "keep_alive": 0}


def test_a_keep_alive_that_nobody_typed_is_no_wish_for_a_loaded_model(home: Home, ready: FakeFront) -> None:
    home.run_here("run", "demo", "hi")
    home.run_here("run", "demo", "hi", FREETOKEN_KEEP_ALIVE="0")
    _, second = ready.requests("/control/load")
    assert "keep_alive" not in second


def test_verbose_prints_statistics_to_stderr(home: Home, ready: FakeFront) -> None:
    done = home.run_here("run", "demo", "hi", "--verbose")
    assert done.stdout == "HI \n"
    for line in (
        "load         250 ms",
        "prompt       7 tokens, 100.0 tokens/s",
        "generated    3 tokens, 50.0 tokens/s",
        "first token  50 ms",
    ):
        assert line in done.stderr.splitlines()


def test_an_answer_that_is_cut_off_says_so_beside_the_result(home: Home, ready: FakeFront) -> None:
    cut = home.run_here("run", "demo", "cut")
    assert (cut.returncode, cut.stdout) == (0, "CUT \n")
    assert "cut off" in cut.stderr
    assert "cut off" not in home.run_here("run", "demo", "whole").stderr


def test_a_converted_model_by_its_path_is_told_where_it_belongs(home: Home) -> None:
    folder = home.folder / "own.ftw"
    folder.mkdir()
    (folder / "ftw.json").write_text("{}")
    done = home.run_here("run", str(folder), "hi")
    assert done.returncode == 2
    assert f"into {home.paths.store}" in done.stderr


def test_thinking_is_not_the_answer(home: Home, ready: FakeFront) -> None:
    done = home.run_here("run", "demo", "think")
    assert done.stdout == "THINK \n"
    assert "let me see\n" in done.stderr


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [("fail", "The model's process was killed."), ("die", "ended in the middle of its answer")],
)
def test_a_failure_in_mid_stream_is_a_sentence(home: Home, ready: FakeFront, prompt: str, sentence: str) -> None:
    done = home.run_here("run", "demo", prompt)
    assert done.returncode == 1
    assert done.stdout == "half an ans\n"
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_devices_to_come_are_refused(home: Home, ready: FakeFront) -> None:
    done = home.run_here("run", "demo", "hi", "--device", "cuda")
    assert done.returncode == 1
    assert "--device cuda" in done.stderr
    assert ready.requests() == []


def test_stderr_names_the_device_the_slots_and_the_hit_rate(home: Home, ready: FakeFront) -> None:
    done = home.run_here("run", "demo", "hi", "--device", "sim", "--experts", "37%")
    assert done.stdout == "HI \n"
    assert done.stderr == (
        "demo on sim, 2 threads, experts 120 slots (37%, 120 MiB), hit rate 84%, kv 8k (7.81 MiB), context 8192\n"
    )
    (load,) = ready.requests("/control/load")
    assert (load["device"], load["experts"]) == ("sim", "37%")


@pytest.mark.parametrize("text", ["0", "0%"])
def test_no_cache_is_a_wish_too(home: Home, ready: FakeFront, text: str) -> None:
    home.run_here("run", "demo", "hi", "--device", "sim", "--experts", text)
    assert ready.requests("/control/load")[0]["experts"] == "0"


def test_contradictions_are_refused(home: Home, ready: FakeFront) -> None:
    assert home.run_here("run", "demo", "hi", "--greedy", "--temperature", "1").returncode == 2
    bad = home.run_here("run", "demo", "hi", "--top-p", "1.5")
    assert (bad.returncode, "--top-p: 1.5 is outside 0 to 1" in bad.stderr) == (2, True)
    assert home.run_here("run", "demo", "hi", "--json").returncode == 2


def test_an_unknown_model_suggests(home: Home, ready: FakeFront) -> None:
    done = home.run_here("run", "dmeo", "hi")
    assert done.returncode == 3
    assert "Did you mean demo?" in done.stderr


def test_ctrl_c_stops_the_model_and_exits_130(home: Home, ready: FakeFront) -> None:
    running = home.start("run", "demo", "slow")
    assert running.stdout is not None
    assert running.stdout.read(2) == "0 "
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=10)
    assert running.returncode == 130
    assert out.endswith("\n")
    assert "Traceback" not in err
    wait_for(lambda: "disconnected" in [entry["path"] for entry in ready.requests()])


def test_a_reader_that_leaves_is_no_error_text(home: Home, ready: FakeFront) -> None:
    running = home.start("run", "demo", "slow", "-q")
    assert running.stdout is not None
    assert running.stdout.read(1) == "0"
    running.stdout.close()
    assert running.wait(timeout=10) == 1
    assert running.stderr is not None
    assert running.stderr.read() == ""


def test_a_folder_named_engine_is_not_taken_for_ours(home: Home, ready: FakeFront) -> None:
    shadow = home.folder / "engine"
    shadow.mkdir()
    (shadow / "__init__.py").write_text("raise SystemExit('shadowed')")
    assert home.run_here("run", "demo", "hi").stdout == "HI \n"


def test_torch_and_numpy_stay_out(home: Home, ready: FakeFront) -> None:
    code = (
        "import sys; from freetoken_cli.program import run\n"
        "assert run(['run', 'demo', 'hi', '-q']) == 0\n"
        "assert not {'torch', 'numpy', 'rich', 'prompt_toolkit'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=home.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        cwd=Path(home.folder),
    )
    assert done.returncode == 0, done.stderr
