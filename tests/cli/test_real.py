"""The command line over the real front and a real worker, on a tiny model; and, as a long test, on the demo."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request

import pexpect
import psutil
import pytest

from tests.cli.harness import PROGRAM, Home, ours, wait_for
from tests.ports import find_free_port

QUICK = ("--greedy", "--max-tokens", "8")


def _workers(home: Home) -> list[psutil.Process]:
    return ours(home, "engine.worker")


def test_one_shot_twice_gives_the_same_answer_and_keeps_the_worker(alive: Home) -> None:
    first = alive.run_here("run", "tiny", "hello", *QUICK, "--verbose")
    assert first.returncode == 0, first.stderr
    assert len(first.stdout.strip()) > 0
    assert re.search(r"^tiny on cpu, \d+ threads, kv ", first.stderr, re.MULTILINE)
    assert re.search(r"^load +\d", first.stderr, re.MULTILINE)
    assert re.search(r"^generated +8 tokens, ", first.stderr, re.MULTILINE)
    (worker,) = _workers(alive)
    second = alive.run_here("run", "tiny", "hello", *QUICK, "--verbose")
    assert second.stdout == first.stdout
    assert not re.search(r"^load ", second.stderr, re.MULTILINE)
    assert [process.pid for process in _workers(alive)] == [worker.pid]


def test_ps_resize_stop(alive: Home) -> None:
    alive.run_here("run", "tiny", "hello", *QUICK, "--kv", "512")
    (model,) = json.loads(alive.run_here("ps", "--json").stdout)["models"]
    assert (model["name"], model["device"], model["kv_tokens"]) == ("tiny", "cpu", 512)
    resized = alive.run_here("resize", "tiny", "--kv", "1k", "--experts", "2G")
    assert resized.returncode == 0, resized.stderr
    assert " → 1k" in resized.stdout
    assert resized.stderr.count("--experts") == 1
    too_much = alive.run_here("resize", "tiny", "--kv", "9000G")
    assert too_much.returncode == 4
    assert "--kv" in too_much.stderr
    (model,) = json.loads(alive.run_here("ps", "--json").stdout)["models"]
    assert model["kv_tokens"] == 1024
    assert alive.run_here("stop", "tiny").stdout == "tiny\n"
    assert _workers(alive) == []


def test_experts_on_the_cpu_are_ignored_and_said_once(alive: Home) -> None:
    done = alive.run_here("run", "tiny", "hello", *QUICK, "--experts", "64M")
    assert done.returncode == 0
    assert done.stderr.count("--experts") == 1


def test_explicit_flags_are_matched(alive: Home) -> None:
    alive.run_here("run", "tiny", "hello", *QUICK, "--threads", "1")
    (worker,) = _workers(alive)
    other = alive.run_here("run", "tiny", "hello", *QUICK, "--threads", "2")
    assert ", 2 threads," in other.stderr
    assert [process.pid for process in _workers(alive)] != [worker.pid]


def test_two_at_once_share_one_front(alive: Home) -> None:
    running = [alive.start("run", "tiny", "hello", *QUICK) for _ in range(3)]
    answers = {process.communicate(timeout=60) for process in running}
    assert [process.returncode for process in running] == [0, 0, 0], answers
    assert len({out for out, _ in answers}) == 1
    assert len(_workers(alive)) == 1
    assert len(ours(alive)) == 2


def test_a_too_long_prompt_does_not_fit(alive: Home) -> None:
    done = alive.run_here("run", "tiny", "word " * 200, "--context", "128", "--max-tokens", "4")
    assert done.returncode == 4
    assert "128" in done.stderr
    assert done.stdout == ""


def test_a_worker_killed_under_the_repl(alive: Home) -> None:
    child = pexpect.spawn(
        PROGRAM[0],
        [*PROGRAM[1:], "run", "tiny", "--max-tokens", "400"],
        env={**alive.environment, "PROMPT_TOOLKIT_NO_CPR": "1"},
        cwd=str(alive.folder),
        encoding="utf-8",
        timeout=30,
        dimensions=(40, 200),
    )
    child.expect_exact(">>> ")
    (worker,) = _workers(alive)
    worker.kill()
    worker.wait(10)
    child.send("/set max_tokens 4\r")
    child.expect_exact(">>> ")
    child.send("hello\r")
    child.expect_exact(">>> ")
    child.send("/stats\r")
    child.expect("generated +4 tokens")
    child.expect_exact(">>> ")
    child.send("\x04")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


class Server:
    """`freetoken serve` in the foreground, and what it printed."""

    def __init__(self, home: Home, *args: str) -> None:
        self.process = home.start("serve", *args)
        assert self.process.stdout is not None
        watchdog = threading.Timer(60, self.process.kill)
        watchdog.start()
        self.banner = self.process.stdout.readline()
        self.curl = self.process.stdout.readline() if self.banner else ""
        watchdog.cancel()

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; exit code and stderr."""
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=30)
        return self.process.returncode, err


def test_serve_prints_an_address_and_a_curl_that_work(alive: Home) -> None:
    port = find_free_port()
    server = Server(alive, "tiny", "--port", str(port))
    try:
        assert server.banner == f"Serving tiny at http://127.0.0.1:{port}/v1\n"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=10) as response:
            assert [model["id"] for model in json.load(response)["data"]] == ["tiny"]
        body = re.search(r"-d '(.*)'$", server.curl.strip())
        assert body is not None
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            json.dumps({**json.loads(body[1]), "max_tokens": 4}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            assert json.load(response)["choices"][0]["message"]["role"] == "assistant"
        assert alive.run_here("run", "tiny", "hello", *QUICK).returncode == 0
        (model,) = json.loads(alive.run_here("ps", "--json").stdout)["models"]
        assert model["until"] is None
        second = alive.run_here("serve", "tiny", "--port", "0")
        assert second.returncode == 1
        assert f"http://127.0.0.1:{port}/v1" in second.stderr
        assert alive.run_here("stop", "tiny").stdout == "tiny\n"
    finally:
        code, err = server.end()
    assert code == 0, err
    assert "tiny was unloaded: freetoken stop.\n" in err
    assert "Traceback" not in err
    assert ours(alive) == []
    with socket.socket() as again:
        assert again.connect_ex(("127.0.0.1", port)) != 0


def test_serve_on_a_free_port_in_place_of_an_idle_background_front(alive: Home) -> None:
    alive.run_here("run", "tiny", "hello", *QUICK)
    server = Server(alive, "tiny", "--port", "0", "--json", "--allowed-hosts", "box.lan, box")
    rest = server.process.stdout
    assert rest is not None
    lines = [server.banner, server.curl]
    while not lines[-1].startswith("}"):
        lines.append(rest.readline())
    document = json.loads("".join(lines))
    assert document["models"] == ["tiny"]
    for host, status in (("box.lan", 200), ("box", 200), ("evil.example", 403)):
        connection = http.client.HTTPConnection("127.0.0.1", int(document["url"].rsplit(":", 1)[1].removesuffix("/v1")))
        connection.request("GET", "/v1/models", headers={"Host": host})
        assert connection.getresponse().status == status
        connection.close()
    assert server.end(signal.SIGINT)[0] == 0


def test_serve_refuses_a_taken_port(alive: Home) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        done = alive.run_here("serve", "tiny", "--port", str(holder.getsockname()[1]))
    assert done.returncode == 1
    assert "is taken" in done.stderr
    assert done.stdout == ""


def test_serve_in_public_wants_a_key(alive: Home) -> None:
    refused = alive.run_here("serve", "tiny", "--host", "0.0.0.0")
    assert refused.returncode == 2
    assert "FREETOKEN_API_KEY" in refused.stderr
    server = Server(alive, "tiny", "--host", "0.0.0.0", "--port", "0", "--api-key", "secret")
    try:
        port = re.search(r":(\d+)/v1", server.banner)
        assert port is not None
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/v1/models", timeout=10)
    finally:
        code, err = server.end()
    assert code == 0
    assert err.startswith("Warning: other machines can reach 0.0.0.0")


def test_serve_of_a_model_that_does_not_fit_ends(alive: Home) -> None:
    done = alive.run("serve", "tiny", "--port", "0", "--kv", "9000G")
    assert done.returncode == 4
    assert "--kv" in done.stderr
    assert done.stdout == ""
    assert ours(alive) == []


def test_a_killed_front_leaves_nothing_and_the_next_one_starts(alive: Home) -> None:
    """SIGKILL leaves the worker no parent; it goes too, and the next front takes over socket and lock."""
    alive.run_here("run", "tiny", "hello", *QUICK)
    for process in ours(alive, "engine.front"):
        process.kill()
    wait_for(lambda: ours(alive) == [])
    assert alive.run_here("run", "tiny", "hello", *QUICK).returncode == 0


def test_a_variable_picks_the_kernels_and_changes_no_word(alive: Home) -> None:
    answers = set()
    for isa in ("scalar", ""):
        answers.add(alive.run_here("run", "tiny", "hello", *QUICK, FREETOKEN_ISA=isa).stdout)
        alive.run_here("stop", "--all")
    assert len(answers) == 1
    assert answers != {""}
    for device in ("cpu", "sim"):
        refused = alive.run_here("run", "tiny", "hello", *QUICK, "--device", device, FREETOKEN_ISA="mmx")
        assert refused.returncode == 2
        assert "FREETOKEN_ISA: 'mmx' is not one of" in refused.stderr
        assert "scalar" in refused.stderr
        alive.run_here("stop", "--all")


def test_bench_and_probe_print_and_write(alive: Home) -> None:
    plan = ("--prompts", "16", "--depths", "0,32", "--decode-tokens", "4", "--repeat", "2")
    result = json.loads(alive.run_here("bench", "tiny", *plan, "--json").stdout)
    assert result["version"] == 1
    assert [decode["depth"] for decode in result["decodes"]] == [0, 32]
    table = alive.run_here("bench", "tiny", *plan)
    assert "decode at 32" in table.stdout
    assert alive.run_here("bench", "tiny", "--depths", "100k").returncode == 4
    assert alive.run_here("bench", "tiny", "--depths", "many").returncode == 2


@pytest.mark.long
def test_probe_writes_a_profile_that_the_estimate_uses(alive: Home) -> None:
    document = json.loads(alive.run_here("probe", "--seconds", "2", "--json").stdout)
    assert document["version"] == 3
    assert document["profile"] == str(alive.paths.profile)
    assert {entry["codec"] for entry in document["experts"]} >= {"f32", "q4_0", "mxfp4"}
    estimate = json.loads(alive.run_here("run", "tiny", "--estimate", "--json").stdout)
    assert estimate["speed"]["low"] <= estimate["speed"]["expected"] <= estimate["speed"]["high"]
    picture = alive.run_here("probe", "tiny", "--seconds", "1")
    assert "Memory reads" in picture.stdout
    alive.paths.profile.unlink()
    alive.paths.profile.mkdir()
    unkept = alive.run_here("probe", "tiny", "--seconds", "0.1")
    assert (unkept.returncode, "Memory reads" in unkept.stdout) == (1, True)  # what was measured is shown all the same
    assert "The profile could not be written" in unkept.stderr
    alive.paths.profile.rmdir()
    assert "f32 64x96" in picture.stdout
    alive.paths.profile.write_text("{")
    damaged = alive.run_here("run", "tiny", "--estimate")
    assert damaged.returncode == 0
    assert "damaged" in damaged.stdout
    assert "freetoken probe" in damaged.stdout


@pytest.mark.long
def test_the_demo_from_nothing_to_an_answer(home: Home) -> None:
    try:
        first = home.run_here("run", "demo", "What is the capital of France?", "--greedy")
        assert first.returncode == 0, first.stderr
        assert "Paris" in first.stdout
        assert "to fetch" in first.stderr
        began = time.monotonic()
        again = home.run_here("run", "demo", "What is the capital of France?", "--greedy", "-q")
        assert time.monotonic() - began < 10
        assert again.stdout == first.stdout
        child = pexpect.spawn(
            PROGRAM[0],
            [*PROGRAM[1:], "run", "demo", "--greedy"],
            env={**home.environment, "PROMPT_TOOLKIT_NO_CPR": "1"},
            cwd=str(home.folder),
            encoding="utf-8",
            timeout=60,
            dimensions=(40, 200),
        )
        child.expect_exact(">>> ")
        child.send("What is the capital of France?\r")
        child.expect_exact("Paris")
        child.expect_exact(">>> ")
        child.send("/bye\r")
        child.expect(pexpect.EOF)
        assert home.run_here("verify", "demo").returncode == 0
    finally:
        home.run_here("stop", "--all")


@pytest.mark.long
def test_a_pull_that_is_stopped_goes_on(home: Home) -> None:
    """SIGTERM in mid-conversion leaves nothing that looks finished; the next pull goes on from there."""
    running = home.start("pull", "demo")
    partial = home.paths.store / "demo.partial"
    wait_for(lambda: (partial / "dense.safetensors").exists() or (home.paths.store / "demo").exists(), 120)
    running.terminate()
    running.communicate(timeout=30)
    if running.returncode != 0:
        assert running.returncode == 128 + signal.SIGTERM
        assert home.run_here("list", "-q").stdout.split() == ["demo"]
        if partial.exists():  # it may have been stopped between the last step and the end
            assert "not complete" in home.run_here("show", "demo").stderr
    done = home.run_here("pull", "demo")
    assert done.returncode == 0, done.stderr
    assert home.run_here("verify", "demo").returncode == 0
    assert os.listdir(home.paths.store) == ["demo"] or ".downloads" in os.listdir(home.paths.store)


def test_no_process_of_ours_is_left_by_a_refused_command(alive: Home) -> None:
    done = subprocess.run(
        [*PROGRAM, "run", "tiny", "hello", "--kv", "9000G"],
        env=alive.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 4
    assert _workers(alive) == []
