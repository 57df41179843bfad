"""pull, convert, list, show and verify on a tiny checkpoint."""

import json
import shutil
from pathlib import Path

import pytest

from engine.files.ftw.manifest import VERSION
from tests.cli.harness import Home


def test_pull_takes_a_folder_in_and_says_what_it_takes(home: Home, checkpoint: Path) -> None:
    done = home.run_here("pull", str(checkpoint))
    assert (done.returncode, done.stdout) == (0, "tiny-mixtral\n")
    first, second = done.stderr.splitlines()
    assert first.startswith("tiny-mixtral: ")
    assert "fits in memory" in first
    assert second == "Converting tiny-mixtral"
    again = home.run_here("pull", str(checkpoint), "--json")
    assert json.loads(again.stdout)["present"] is True


def test_pull_under_another_name_and_dry(home: Home, checkpoint: Path) -> None:
    dry = home.run_here("pull", str(checkpoint), "--name", "mine", "--dry-run", "--json")
    plan = json.loads(dry.stdout)
    assert (plan["name"], plan["fits"], plan["fetch"]) == ("mine", True, 0)
    assert not home.paths.store.exists()
    assert home.run_here("pull", str(checkpoint), "--name", "mine", "-q").stdout == "mine\n"
    assert home.run_here("list", "-q").stdout == "mine\n"


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["pull", "./nowhere"], 3, "nowhere"),
        (["pull", "demo", "--name", "a/b"], 2, "a/b"),
        (["convert", "./nowhere"], 3, "nowhere"),
        (["convert", "x", "y", "--name", "z"], 2, "--name"),
        (["convert", "x", ""], 2, "DEST is empty"),
        (["show", "nothing"], 3, "nothing"),
        (["verify", "nothing"], 3, "nothing"),
        (["rm", "nothing", "--yes"], 3, "nothing"),
        (["run", "./model.gguf", "hi"], 2, "freetoken pull ./model.gguf"),
        (["doctor", "./nowhere"], 3, "nowhere"),
        (["bench", "nothing"], 3, "nothing"),
        (["run", "nothing", "--estimate"], 3, "nothing"),
    ],
)
def test_refusals(home: Home, args: list[str], code: int, words: str) -> None:
    done = home.run_here(*args)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert done.stdout == ""


def test_convert_into_a_folder_refuses_to_overwrite(home: Home, checkpoint: Path) -> None:
    done = home.run_here("convert", str(checkpoint), "out.ftw")
    assert (done.returncode, done.stdout) == (0, "out.ftw\n")
    assert home.run_here("convert", str(checkpoint), "out.ftw").returncode == 2
    assert home.run_here("convert", str(checkpoint), "out.ftw", "--force").returncode == 0
    assert home.run_here("verify", "./out.ftw").returncode == 0
    assert home.run_here("verify", "out.ftw").returncode == 0, "as convert has printed it"
    run = home.run_here("run", "out.ftw", "hi")
    assert (run.returncode, "move or link it into" in run.stderr) == (3, True), run.stderr


def test_a_folder_here_that_is_not_in_the_store_is_no_unknown_name(home: Home, checkpoint: Path) -> None:
    (home.folder / "mine").symlink_to(checkpoint)
    run = home.run_here("run", "mine", "hi")
    assert (run.returncode, "take it in first: freetoken pull mine" in run.stderr) == (3, True), run.stderr


def test_a_converted_model_is_no_checkpoint_but_runs_from_the_store(home: Home, converted: Path) -> None:
    for args in (["pull", str(converted)], ["convert", str(converted), "again"], ["doctor", str(converted)]):
        refused = home.run_here(*args)
        assert refused.returncode == 1
        assert "is a converted model already" in refused.stdout + refused.stderr
    home.paths.store.mkdir()
    (home.paths.store / "linked").symlink_to(converted)
    assert home.run_here("list", "-q").stdout == "linked\n"
    assert home.run_here("verify", "linked").returncode == 0


def test_nothing_is_announced_that_is_refused(home: Home, checkpoint: Path) -> None:
    assert home.run_here("convert", str(checkpoint), "out.ftw").stderr == f"Converting {checkpoint}\n"
    refused = home.run_here("convert", str(checkpoint), "out.ftw")
    assert refused.returncode == 2
    assert "out.ftw is there already" in refused.stderr
    assert "Converting" not in refused.stderr


def test_experts_in_another_codec_come_with_the_error(home: Home, checkpoint: Path) -> None:
    done = home.run_here("convert", str(checkpoint), "--name", "small", "--expert-codec", "q8_0", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["requantised"]
    assert (result["codec"], result["tensors"]) == ("q8_0", 24)
    assert 0 < result["error"] <= result["worst_error"] < 0.02
    assert f"relative error (rms) of {result['error']:.2%}" in done.stderr
    shown = home.run_here("show", "small").stdout
    assert "experts in q8_0" in shown
    assert f"experts put into q8_0: relative error (rms) {result['error']:.2%}" in shown
    kept = home.run_here("convert", str(checkpoint), "--name", "plain", "--json")
    assert json.loads(kept.stdout)["requantised"] is None
    wrong = home.run_here("convert", str(checkpoint), "other", "--expert-codec", "q4_0")
    assert wrong.returncode == 2
    assert "mxfp4, nvfp4, q8_0" in wrong.stderr


def test_convert_into_the_store(home: Home, checkpoint: Path) -> None:
    done = home.run_here("convert", str(checkpoint), "--name", "mine", "--json")
    assert json.loads(done.stdout)["folder"] == str(home.paths.store / "mine")


def test_pull_does_not_take_one_model_for_another(home: Home, checkpoint: Path) -> None:
    assert home.run_here("pull", str(checkpoint)).returncode == 0
    other = home.folder / "elsewhere" / checkpoint.name
    shutil.copytree(checkpoint, other)
    assert home.run_here("pull", str(other)).returncode == 0, "a copy of the same files is the same model"
    (other / "model.safetensors").rename(other / "renamed.safetensors")
    for extra in ([], ["--dry-run"]):
        refused = home.run_here("pull", str(other), *extra)
        assert refused.returncode == 2
        assert "made of other files" in refused.stderr
        assert "--name" in refused.stderr
    assert home.run_here("pull", str(other), "--name", "second").stdout == "second\n"
    assert home.run_here("pull", str(other), "--force").returncode == 0
    assert home.run_here("pull", str(other)).returncode == 0


def test_pull_never_asks_and_takes_yes_all_the_same(home: Home, checkpoint: Path) -> None:
    plain = home.run_here("pull", str(checkpoint), "--name", "plain")
    agreed = home.run_here("pull", str(checkpoint), "--name", "agreed", "--yes")
    assert (plain.stdout, agreed.stdout) == ("plain\n", "agreed\n")
    assert "a pull never asks" in home.run_here("pull", "--help").stdout


def test_pull_tells_what_is_wrong_with_what_is_there(home: Home, checkpoint: Path) -> None:
    assert home.run_here("pull", str(checkpoint), "--name", "mine").returncode == 0
    bank = home.paths.store / "mine" / "experts-0-0.bank"
    bank.write_bytes(bank.read_bytes()[:-4096])
    damaged = home.run_here("pull", str(checkpoint), "--name", "mine")
    assert damaged.returncode == 1
    assert "experts-0-0.bank is short" in damaged.stderr
    assert "--force" in damaged.stderr
    assert home.run_here("pull", str(checkpoint), "--name", "mine", "--force").returncode == 0
    assert home.run_here("verify", "mine").returncode == 0
    (home.paths.store / "empty").mkdir()
    nothing = home.run_here("pull", str(checkpoint), "--name", "empty")
    assert nothing.returncode == 2
    assert "freetoken rm empty" in nothing.stderr


def test_a_name_in_a_file_cannot_command_the_terminal(home: Home, checkpoint: Path) -> None:
    odd = home.folder / "odd"
    shutil.copytree(checkpoint, odd)
    config = json.loads((odd / "config.json").read_text())
    (odd / "config.json").write_text(json.dumps({**config, "architectures": [], "model_type": "\x1b[2J\x9b31m"}))
    done = home.run_here("convert", str(odd), "out")
    assert done.returncode == 1
    assert "model family" in done.stderr
    assert not {"\x1b", "\x9b"} & set(done.stderr)


def test_list_in_its_three_forms(stored: Home) -> None:
    table = [line.split() for line in stored.run_here("list").stdout.splitlines()]
    assert table[0] == ["NAME", "SIZE", "FORMAT", "MODIFIED"]
    assert table[1][0] == "tiny"
    assert table[1][3] == "f32"
    assert stored.run_here("list", "-q").stdout == "tiny\n"
    (model,) = json.loads(stored.run_here("list", "--json").stdout)["models"]
    assert (model["name"], model["format"], model["state"]) == ("tiny", "f32", "ready")


def test_list_shows_what_is_damaged_and_unfinished(stored: Home) -> None:
    (stored.paths.store / "half.partial").mkdir()
    shutil.copytree(stored.paths.store / "tiny", stored.paths.store / "bad")
    (stored.paths.store / "bad/dense.safetensors").write_bytes(b"")
    done = stored.run_here("list")
    assert done.returncode == 0
    assert "(broken)" in done.stdout
    assert "(partial)" in done.stdout
    assert "freetoken rm half" in done.stderr
    assert "dense.safetensors" in done.stderr


def test_a_link_to_nothing_is_not_looked_for_elsewhere(home: Home) -> None:
    home.paths.store.mkdir()
    (home.paths.store / "away").symlink_to("/mnt/away")
    for args in (["run", "away", "hello"], ["show", "away"]):
        done = home.run_here(*args)
        assert done.returncode == 3
        assert done.stderr.endswith("Mount that disk, or remove the link with freetoken rm away.\n")


def test_a_model_of_another_version_says_so_everywhere(stored: Home) -> None:
    manifest = stored.paths.store / "tiny/ftw.json"
    manifest.write_text(manifest.read_text().replace(f'"version": {VERSION}', '"version": 7'))
    listed = stored.run_here("list")
    assert "(unsupported)" in listed.stdout
    done = [
        listed,
        *(stored.run_here(*args) for args in (["show", "tiny"], ["run", "tiny", "--estimate"], ["verify", "tiny"])),
    ]
    for each in done:
        assert f"FTW version 7; this release reads version {VERSION}." in each.stderr
    assert [each.returncode for each in done] == [0, 1, 1, 1]


def test_a_model_that_is_pulled_anew_is_one_name_and_two_lines(stored: Home) -> None:
    (stored.paths.store / "tiny.partial").mkdir()
    assert stored.run_here("list", "-q").stdout == "tiny\n"
    assert [line.split()[0] for line in stored.run_here("list").stdout.splitlines()] == ["NAME", "tiny", "tiny"]
    assert stored.run_here("rm", "tiny", "--yes").stdout == "tiny\n"
    assert stored.run_here("list", "-q").stdout == ""


def test_downloads_are_listed_and_removed(stored: Home) -> None:
    arriving = stored.paths.store / ".downloads/big/files"
    arriving.mkdir(parents=True)
    (arriving / "model.safetensors").write_bytes(bytes(200_000))
    models = {model["name"]: model for model in json.loads(stored.run_here("list", "--json").stdout)["models"]}
    big = models["big"]
    assert (big["state"], models["tiny"]["state"]) == ("partial", "ready")
    assert big["size"] >= 200_000
    assert "fetched so far" in stored.run_here("list").stderr
    missing = stored.run_here("show", "big")
    assert (missing.returncode, "not complete" in missing.stderr) == (3, True)
    assert stored.run_here("rm", "big", "--yes").stdout == "big\n"
    assert not arriving.exists()


def test_show(stored: Home) -> None:
    text = stored.run_here("show", "tiny").stdout
    assert "family      mixtral" in text
    assert "4, 2 a token, width 96, in 2 layers" in text
    document = json.loads(stored.run_here("show", "tiny", "--json").stdout)
    assert (document["version"], document["family"], document["layers"]) == (1, "mixtral", 2)
    classes = {(each["name"], each["codec"]) for each in document["tensors"]}
    assert classes >= {("experts", "f32"), ("attention", "f32"), ("router", "f32"), ("embedding", "f32")}
    listed = sum(each["size"] for each in document["tensors"])
    assert listed <= document["dense_bytes"] + document["expert_bytes"] < listed + 4096 * (1 + 2 * 4)
    estimate = json.loads(stored.run_here("run", "tiny", "--estimate", "--json").stdout)
    here = document["estimate"]
    assert (here["token_bytes"], here["kv_bytes"]) == (estimate["token_bytes"], estimate["kv_bytes"])
    assert document["origin"] == {"source": "Tiny-Mixtral", "revision": None, "licence": None}
    for label in (
        "tensors     experts in f32",
        "source      Tiny-Mixtral",
        "made by     freetoken",
        "a token     reads",
    ):
        assert label in text
    assert stored.run_here("show", "tiny", "-q").stdout == "tiny\n"
    assert "Did you mean tiny?" in stored.run_here("show", "tny").stderr


def test_verify_names_what_was_altered(stored: Home) -> None:
    good = stored.run_here("verify", "tiny")
    assert good.returncode == 0
    assert good.stdout.startswith("tiny: ")
    (bank,) = (stored.paths.store / "tiny").glob("*.bank")
    content = bytearray(bank.read_bytes())
    content[5] ^= 1
    bank.write_bytes(content)
    bad = stored.run_here("verify", "tiny")
    assert bad.returncode == 1
    assert "expert 0 of MoE layer 0 (bytes 0 to " in bad.stderr
    (problem,) = json.loads(stored.run_here("verify", "tiny", "--json").stdout)["problems"]
    assert (problem["file"], problem["start"]) == (str(bank), 0)
    assert len(problem["found"]) == len(problem["expected"]) == 32
    assert problem["expected"] in bad.stderr
    assert problem["found"] in bad.stderr


def test_verify_of_a_wreck_stays_readable(stored: Home) -> None:
    (bank,) = (stored.paths.store / "tiny").glob("*.bank")
    dense = stored.paths.store / "tiny/dense.safetensors"
    bank.write_bytes(bytes(bank.stat().st_size))
    content = dense.read_bytes()
    dense.write_bytes(content[:4096] + bytes(len(content) - 4096))
    done = stored.run_here("verify", "tiny")
    count = len(json.loads(stored.run_here("verify", "tiny", "--json").stdout)["problems"])
    assert count > 20
    assert f"And {count - 20} more places" in done.stderr


@pytest.mark.parametrize("command", [["show"], ["verify"], ["bench"], ["probe"], ["run", "--estimate"]], ids=" ".join)
def test_a_path_without_a_model_is_not_found(home: Home, command: list[str]) -> None:
    done = home.run_here(*command, "./nowhere")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("Error: There is no converted model at nowhere.")
    assert "freetoken pull ./nowhere" in done.stderr


def test_a_file_in_the_place_of_a_conversion_is_left_alone(home: Home, checkpoint: Path) -> None:
    stranger = home.paths.store / "tiny.partial"
    stranger.parent.mkdir()
    stranger.write_text("notes")
    done = home.run_here("pull", str(checkpoint), "--name", "tiny")
    assert (done.returncode, "Move that file away." in done.stderr) == (1, True)
    assert home.run_here("list", "-q").stdout == ""
    assert home.run_here("rm", "tiny", "--yes").returncode == 3
    assert stranger.read_text() == "notes"


def test_estimate_states_everything_and_loads_nothing(stored: Home) -> None:
    done = stored.run_here("run", "tiny", "--estimate", "--kv", "1k")
    assert done.returncode == 0
    for label in ("weights", "kv", "RAM", "VRAM", "a token", "speed", "fits"):
        assert f"\n{label} " in done.stdout
    assert "freetoken probe" in done.stdout
    document = json.loads(stored.run_here("run", "tiny", "--estimate", "--json", "--kv", "1k").stdout)
    assert (document["kv_tokens"], document["fits"], document["vram"]) == (1024, True, 0)
    # keys and values of 2 heads of 16, in 2 layers, 2 bytes each
    assert document["kv_bytes"] == 1024 * 2 * (2 * 16 * 2) * 2
    assert stored.run_here("ps", "-q").stdout == ""


def test_an_estimate_that_does_not_fit_says_which_number_and_flag(stored: Home) -> None:
    done = stored.run_here("run", "tiny", "--estimate", "--kv", "9000G")
    assert done.returncode == 4
    assert "more than the" in done.stderr
    assert "--kv" in done.stderr
    assert "fits     no" in done.stdout


def test_doctor_looks_at_a_checkpoint(home: Home, checkpoint: Path) -> None:
    done = home.run_here("doctor", str(checkpoint))
    assert done.returncode == 0
    assert "mixtral, 2 layers, hidden 64, 4 experts, 2 a token" in done.stdout


def test_doctor_names_an_unknown_family(home: Home, checkpoint: Path) -> None:
    folder = home.folder / "strange"
    shutil.copytree(checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mixtrall", "architectures": ["MixtrallForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    done = home.run_here("doctor", str(folder))
    assert done.returncode == 1
    assert "mixtrall" in done.stdout
    pulled = home.run_here("pull", str(folder))
    assert pulled.returncode == 1
    assert not home.paths.store.exists()


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\x00"])
def test_a_damaged_manifest_is_told_with_the_way_out(stored: Home, content: bytes) -> None:
    (stored.paths.store / "tiny" / "ftw.json").write_bytes(content)
    for args in (["show", "tiny"], ["verify", "tiny"], ["run", "tiny", "--estimate"]):
        done = stored.run_here(*args)
        assert (done.returncode, done.stdout) == (1, "")
        assert "--force" in done.stderr


@pytest.mark.parametrize("args", [["show", "tiny"], ["run", "tiny", "--estimate"]])
def test_a_short_file_is_not_shown_as_a_healthy_model(stored: Home, args: list[str]) -> None:
    dense = stored.paths.store / "tiny" / "dense.safetensors"
    dense.write_bytes(dense.read_bytes()[:-1])
    done = stored.run_here(*args)
    assert (done.returncode, done.stdout) == (1, "")
    assert "dense.safetensors is short" in done.stderr


def test_a_destination_that_would_hurt_is_refused(home: Home, checkpoint: Path) -> None:
    before = sorted(checkpoint.iterdir())
    for dest, words in (
        ("out.partial", ".partial"),
        (str(checkpoint), "source itself"),
        (str(checkpoint / "out"), "in the source"),
        ("x" * 250, "too long"),
        ("x" * 300, "too long"),
    ):
        done = home.run_here("convert", str(checkpoint), str(home.folder / dest))
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert words in done.stderr
    assert sorted(checkpoint.iterdir()) == before


@pytest.mark.parametrize("command", ["pull", "convert", "doctor", "run"])
def test_a_path_that_no_disk_can_hold_is_wrong_usage(home: Home, command: str) -> None:
    done = home.run_here(command, "x" * 300, *(["--estimate"] if command == "run" else []))
    assert (done.returncode, done.stdout) == (2, "")
    assert "too long" in done.stderr
    assert "shorter" in done.stderr


@pytest.mark.parametrize("command", ["verify", "pull", "convert", "doctor", "replay"])
def test_the_home_of_a_user_who_does_not_exist_is_told_in_a_sentence(home: Home, command: str) -> None:
    done = home.run_here(command, "~no-such-user/x")
    assert (done.returncode, done.stdout) == (3, "")
    assert "~no-such-user/x" in done.stderr


def test_a_folder_of_gguf_files_names_them(home: Home) -> None:
    folder = home.folder / "some models"
    folder.mkdir()
    (folder / "a.gguf").touch()
    done = home.run_here("convert", str(folder))
    assert done.returncode == 3
    assert f"'{folder / 'a.gguf'}'" in done.stderr
    (folder / "config.json").touch()
    done = home.run_here("convert", str(folder))
    assert done.returncode == 1
    assert "config.json is empty.\nFetch" in done.stderr
