"""A converted model on the native executor behind a real front: nothing here is a fake."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import ollama
import pytest

import engine.front
from engine.files.conversion.convert import convert
from engine.files.ftw.opening import open_model
from engine.memory.blocks import ContextRoom
from engine.program.executor import Batch
from engine.program.ir import KV_DTYPE
from engine.program.lowering.lower import lower
from engine.program.native import NativeExecutor
from engine.spec.schema import Spec
from engine.text.text import Text
from tests.bench.random_moe import Codecs, random_moe
from tests.bench.shapes import Shape
from tests.server.running_front import TEMPLATE, RunningFront, start_front, write_text_files
from tests.unit.fake_executor import VOCAB

SHAPE = Shape(
    layers=2,
    hidden=64,
    heads=4,
    kv_heads=2,
    head_dim=32,
    experts=8,
    top_k=2,
    intermediate=32,
    vocab=VOCAB,
    context=1024,
)


@pytest.fixture(scope="module")
def model_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one random model in q4_0, whose tokens are single bytes."""
    folder = tmp_path_factory.mktemp("real")
    file, store = folder / "model.gguf", folder / "store"
    store.mkdir()
    random_moe("qwen3_moe", SHAPE, Codecs(experts="q4_0"), gguf_file=file, tokenizer=False)

    def write_tokenizer(_metadata: Mapping[str, Any], target: Path) -> None:
        write_text_files(target)

    convert(file, store / "tiny", write_tokenizer=write_tokenizer)
    return store


@pytest.fixture(scope="module")
def real(model_store: Path) -> Iterator[RunningFront]:
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        script = Path(engine.front.__path__[0]) / "__main__.py"
        front = start_front(model_store, Path(folder), script=script)
        yield front
        assert front.stop() == 0


def complete(front: RunningFront, prompt: list[int], **options: Any) -> Any:
    return front.openai.completions.create(model="tiny", prompt=prompt, **options)


def token_names(front: RunningFront, prompt: list[int], count: int, **options: Any) -> list[str]:
    extra = {"ignore_eos": True}
    completion = complete(front, prompt, max_tokens=count, logprobs=0, extra_body=extra, **options)
    names: list[str] = completion.choices[0].logprobs.tokens
    return names


def by_hand(store: Path, prompt: list[int], count: int) -> list[int]:
    """The greedy answer of the executor alone: the whole prompt in one step, then token after token."""
    model = open_model(store / "tiny")
    program = lower(Spec.from_json(model.spec))
    executor = NativeExecutor(program, model.dense, model.banks, threads=1, kv_dtype=KV_DTYPE, room=ContextRoom(32))
    table = np.arange(31, -1, -1, dtype=np.int32)
    tokens, start = list(prompt), 0
    for _ in range(count):
        fed = tokens[start:]
        batch = Batch(
            tokens=np.array(fed, np.int32),
            positions=np.arange(start, len(tokens), dtype=np.int32),
            seq_starts=np.array([0, len(fed)], np.int32),
            page_tables=(table,),
            rows=np.array([len(fed) - 1], np.int32),
        )
        start = len(tokens)
        tokens.append(int(executor.step(batch)[0].argmax()))
    return tokens[len(prompt) :]


def test_the_server_answers_what_the_executor_does(real: RunningFront, model_store: Path) -> None:
    prompt = [(7 * index) % 250 for index in range(100)]
    wanted = by_hand(model_store, prompt, 24)
    completion = complete(real, prompt, max_tokens=24, temperature=0, extra_body={"ignore_eos": True})
    assert completion.choices[0].text == Text.load(model_store / "tiny").decode(wanted)


def test_neighbours_and_a_reused_prefix_change_no_token(real: RunningFront) -> None:
    prompts = [[(seed * 31 + index * 7) % 250 for index in range(20 + 37 * seed)] for seed in range(5)]
    options: dict[str, Any] = {"seed": 5, "temperature": 0.9}
    alone = [token_names(real, prompt, 30, **options) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(lambda prompt: token_names(real, prompt, 30, **options), prompts))
    assert together == alone
    again = complete(real, prompts[4], max_tokens=1)
    assert again.usage.prompt_tokens_details.cached_tokens == len(prompts[4]) // 16 * 16


def test_threads_and_a_live_resize_change_no_token(real: RunningFront) -> None:
    prompt = [(11 * index) % 250 for index in range(90)]
    real.control("load", model="tiny", threads=2)
    before = token_names(real, prompt, 40, temperature=0)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(token_names, real, prompt, 400, temperature=0)
        for tokens in (500, 512, 496, 512):
            assert "error" not in real.control("resize", model="tiny", kv_tokens=tokens)
        assert answer.result()[:40] == before
    assert real.control("load", model="tiny", threads=1)["threads"] == 1
    assert token_names(real, prompt, 40, temperature=0) == before


def test_the_states_of_a_real_model(real: RunningFront) -> None:
    real.control("stop", model="tiny")
    state = real.control("load", model="tiny", kv_tokens=256, experts="50%")
    assert (state["context"], state["kv_tokens"], state["device"]) == (256, 256, "cpu")
    assert state["kv_bytes"] == 256 * 2 * 2 * 2 * 32 * 2  # tokens, layers, keys and values, heads, width, f16
    assert state["size"] > 0
    assert "--experts has no effect" in state["notes"][0]
    stats = real.stats("tiny")
    assert stats["executor_steps"] == stats["steps"]
    too_long = real.control("load", model="tiny", context=100_000)["error"]
    assert too_long["type"] == "DoesNotFitError"
    assert "98976 tokens more than the 1024" in too_long["message"]


def test_a_simulated_device_answers_as_the_cpu_does_through_any_resize(real: RunningFront) -> None:
    prompt = [(13 * index) % 250 for index in range(60)]
    real.control("load", model="tiny", device="cpu", kv_tokens=512)
    wanted = token_names(real, prompt, 48, temperature=0)
    state = real.control("load", model="tiny", device="sim", experts="50%", kv_tokens=512)
    assert (state["device"], state["expert_slots"]) == ("sim", 8)
    assert "simulated device" in state["device_text"]
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(token_names, real, prompt, 48, temperature=0)
        moved = 0
        while not answer.done():
            experts, tokens = [("2", 400), ("100%", 512), ("0", 448), ("5", 1024)][moved % 4]
            resized = real.control("resize", model="tiny", experts=experts, kv_tokens=tokens)
            assert "error" not in resized, resized
            moved += 1
        assert answer.result() == wanted
    assert moved >= 2
    (state,) = real.control("ps")["models"]
    assert state["hit_rate"] is not None
    stats = real.control("stats", model="tiny")
    assert stats["experts"]["counts"]["plans"] > 0
    assert stats["experts"]["clock"]
    real.control("stop", model="tiny")


def test_room_on_a_device_is_refused_by_number(real: RunningFront) -> None:
    error = real.control("load", model="tiny", device="sim", experts="1")["error"]
    assert error["type"] == "DoesNotFitError"
    assert error["remedy"] == "Give --experts 2 or more, or --experts 0 to cache none."
    error = real.control("load", model="tiny", device="sim", kv_bytes=2**45)["error"]
    assert error["type"] == "NoRoomError"
    assert "Give --kv" in error["remedy"]
    state = real.control("load", model="tiny", device="sim", experts="0", kv_tokens=256)
    assert (state["experts"], state["expert_slots"]) == (0.0, 0)
    assert len(token_names(real, [1, 2, 3], 4, temperature=0)) == 4
    real.control("stop", model="tiny")


def test_ollamas_client_lists_and_shows_a_real_model(real: RunningFront, model_store: Path) -> None:
    client = ollama.Client(host=real.url)
    (listed,) = client.list().models
    assert (listed.model, len(listed.digest or "")) == ("tiny", 64)
    assert listed.details is not None
    shown = client.show("tiny:latest")
    assert shown.details == listed.details
    assert shown.details is not None
    assert (shown.details.family, shown.details.format) == ("qwen3_moe", "ftw")
    assert shown.modelinfo is not None
    assert shown.modelinfo["qwen3_moe.context_length"] > 0
    assert shown.modelinfo["general.basename"] == "tiny"  # VS Code shows it
    assert shown.capabilities == ["completion"]
    assert shown.template == TEMPLATE
    assert shown.modified_at == listed.modified_at
