"""ps, stop and resize, which only talk to the front."""

import json

import pytest

from tests.cli.harness import FakeFront, Home


def _load(home: Home, name: str = "demo", **asked: str) -> None:
    from freetoken_cli.unix_http import call

    call(home.paths.socket, "POST", "/control/load", {"model": name, "defaults": {}, **asked})


def test_ps_without_a_front_is_empty_and_starts_none(home: Home) -> None:
    done = home.run_here("ps")
    assert done.returncode == 0
    assert done.stdout.split() == ["NAME", "SIZE", "DEVICE", "EXPERTS%", "HIT%", "KV", "CONTEXT", "UNTIL"]
    assert "Nothing is loaded" in done.stderr
    assert not home.paths.socket.exists()


def test_ps_in_its_three_forms(home: Home, front: FakeFront) -> None:
    _load(home)
    table = home.run_here("ps").stdout.splitlines()
    assert table[1].split() == ["demo", "93.0", "MiB", "cpu", "-", "-", "8192", "8192", "forever"]
    assert home.run_here("ps", "-q").stdout == "demo\n"
    document = json.loads(home.run_here("ps", "--json").stdout)
    assert document["version"] == 1
    assert document["models"][0]["kv_bytes"] == 8192000


def test_stop_unloads_and_prints_the_name(home: Home, front: FakeFront) -> None:
    _load(home)
    done = home.run_here("stop", "demo")
    assert (done.returncode, done.stdout) == (0, "demo\n")
    assert home.run_here("ps", "-q").stdout == ""


def test_stop_of_what_is_not_loaded_suggests(home: Home, front: FakeFront) -> None:
    _load(home)
    done = home.run_here("stop", "dmeo")
    assert done.returncode == 3
    assert "Did you mean demo?" in done.stderr
    assert home.run_here("ps", "-q").stdout == "demo\n"


def test_stop_all_ends_the_front(home: Home, front: FakeFront) -> None:
    done = home.run("stop", "--all")
    assert done.returncode == 0
    assert front.process.wait(timeout=10) == 0
    again = home.run("stop", "--all")
    assert again.returncode == 0
    assert "No background server runs." in again.stderr


def test_stop_needs_to_know_what(home: Home) -> None:
    assert home.run_here("stop").returncode == 2
    assert home.run_here("stop", "demo", "--all").returncode == 2


def test_resize_prints_before_after_and_time(home: Home, front: FakeFront) -> None:
    _load(home)
    done = home.run_here("resize", "demo", "--kv", "32k")
    assert done.returncode == 0
    assert done.stdout == "demo: kv 8k (7.81 MiB) → 32k (31.2 MiB), context 8192 → 32768, in 12 ms\n"
    assert front.requests("/control/resize") == [{"model": "demo", "kv_tokens": 32768}]


def test_resize_in_bytes_and_with_experts(home: Home, front: FakeFront) -> None:
    _load(home)
    done = home.run_here("resize", "demo", "--kv", "1M", "--experts", "2G", "--json")
    assert json.loads(done.stdout)["after"]["kv_tokens"] == 1048
    assert done.stderr.count("--experts is ignored on cpu") == 1
    assert front.requests("/control/resize") == [{"model": "demo", "kv_bytes": 2**20, "experts": f"{2**31}B"}]


def test_experts_of_a_device_in_ps_and_resize(home: Home, front: FakeFront) -> None:
    _load(home, device="sim")
    table = home.run_here("ps").stdout.splitlines()
    assert table[1].split() == ["demo", "93.0", "MiB", "sim", "37", "84", "8192", "8192", "forever"]
    (model,) = json.loads(home.run_here("ps", "--json").stdout)["models"]
    assert (model["experts"], model["expert_slots"], model["hit_rate"]) == (0.37, 120, 0.84)
    done = home.run_here("resize", "demo", "--experts", "60")
    assert done.stdout == (
        "demo: kv 8k (7.81 MiB) → 8k (7.81 MiB), context 8192 → 8192, "
        "experts 120 slots (37%, 120 MiB) → 60 slots (18%, 60.0 MiB), in 12 ms\n"
    )


def test_resize_to_a_share(home: Home, front: FakeFront) -> None:
    _load(home, device="sim")
    assert home.run_here("resize", "demo", "--kv", "40%").returncode == 0
    assert front.requests("/control/resize") == [{"model": "demo", "kv_share": 0.4}]
    bad = home.run_here("resize", "demo", "--kv", "100%")
    assert (bad.returncode, "--kv: '100%' is not a share" in bad.stderr) == (2, True)


def test_a_default_in_the_environment_is_no_wish_to_resize(home: Home, front: FakeFront) -> None:
    _load(home)
    done = home.run_here("resize", "demo", "--experts", "50%", FREETOKEN_KV="4k")
    assert done.returncode == 0
    assert front.requests("/control/resize") == [{"model": "demo", "experts": "50%"}]


def test_resize_refuses(home: Home, front: FakeFront) -> None:
    _load(home)
    assert home.run_here("resize", "demo").returncode == 2
    bad = home.run_here("resize", "demo", "--kv", "32q")
    assert bad.returncode == 2
    assert "--kv: '32q'" in bad.stderr
    assert home.run_here("resize", "other", "--kv", "32k").returncode == 3
    assert front.requests("/control/resize") == []


@pytest.mark.parametrize("command", [["stop"], ["resize", "--kv", "4k"]], ids=" ".join)
def test_a_name_that_is_not_loaded_is_quoted(home: Home, front: FakeFront, command: list[str]) -> None:
    for name in ("", "two words"):
        done = home.run_here(*command, name)
        assert (done.returncode, f"Error: {name!r} is not loaded." in done.stderr) == (3, True)
    assert "freetoken resize 'two words' --kv 32k" in home.run_here("resize", "two words").stderr
