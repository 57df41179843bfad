"""A prompt that is encoded in parts, some of them known, has the ids and the edges of one that is encoded whole."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import text_models
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.memory.retention import Anchor
from engine.text.anchors import among_tokens
from engine.text.encoded_parts import PartCache
from engine.text.text import Text
from engine.text.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Vocabulary]:
    folder = tmp_path_factory.mktemp("models")
    return {name: Text.load(make(folder / name))._vocabulary for name, make in text_models.MODELS.items()}


def whole(vocabulary: Vocabulary, text: str) -> list[int]:
    """The ids of `text` in one go."""
    return vocabulary._real_ids(vocabulary._guarded.encode(text, add_special_tokens=False).ids)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_parts_have_the_ids_and_the_edges_of_the_whole(
    vocabularies: dict[str, Vocabulary], data: st.DataObject
) -> None:
    vocabulary = vocabularies[data.draw(st.sampled_from(sorted(vocabularies)))]
    control = st.sampled_from(sorted(vocabulary.guard.tokens)).map(vocabulary.guard.sealed)
    plain = st.text(alphabet=st.sampled_from("ab  \n\t1é<>|ö▁日"), max_size=8)
    text = "".join(data.draw(st.lists(st.one_of(control, plain), max_size=12)))
    encoded = vocabulary.encode_sealed(text)
    assert "".join(encoded.parts) == text
    assert encoded.ids == whole(vocabulary, text)
    places: list[Anchor] = data.draw(st.lists(st.tuples(st.integers(0, len(text)), st.booleans()), max_size=4))
    assert sorted(encoded.edges(places)) == sorted(among_tokens(places, vocabulary._spans(text)))


@pytest.mark.parametrize("model", sorted(text_models.MODELS))
def test_of_a_conversation_that_grows_only_the_end_is_new(
    vocabularies: dict[str, Vocabulary], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = vocabularies[model]
    turn = vocabulary.guard.sealed(min(vocabulary.guard.tokens))
    seen: list[str] = []

    def encode(parts: Sequence[str]) -> list[list[int]]:
        seen.extend(parts)
        return [whole(vocabulary, part) for part in parts]

    monkeypatch.setattr(vocabulary, "_parts", PartCache(encode))
    text = f"{turn}first words{turn}second words{turn}"
    assert vocabulary.encode_sealed(text).ids == whole(vocabulary, text)
    seen.clear()
    assert vocabulary.encode_sealed(f"{text}third words").ids == whole(vocabulary, f"{text}third words")
    assert seen == [f"{turn}third words"]


def test_a_token_that_swallows_the_spaces_before_it_is_no_place_to_cut(tmp_path: Path) -> None:
    tokenizer = text_models.byte_level()
    tokenizer.add_special_tokens([text_models.AddedToken("<|end|>", lstrip=True, normalized=False, special=True)])
    vocabulary = Text.load(text_models.save(tmp_path, tokenizer, "chatml", eos_token="<|end|>"))._vocabulary
    text = "words   " + vocabulary.guard.sealed("<|end|>")
    assert vocabulary.encode_sealed(text).ids == whole(vocabulary, text)
    assert whole(vocabulary, "words   ") != whole(vocabulary, text)[:-1], "it swallows none"


def test_the_parts_that_were_used_last_are_kept() -> None:
    asked: list[str] = []

    def encode(parts: Sequence[str]) -> list[list[int]]:
        asked.extend(parts)
        return [[ord(letter) for letter in part] for part in parts]

    cache = PartCache(encode, most=2 * (256 + 3))
    for part in ("aaa", "bbb", "aaa", "ccc", "aaa", "bbb"):
        assert list(cache.ids_of([part])[0]) == [ord(letter) for letter in part]
    assert asked == ["aaa", "bbb", "ccc", "bbb"]
    assert cache.ids_of(["x" * 600, "x" * 600])[1].tolist() == [ord("x")] * 600
    assert asked[4:] == ["x" * 600], "twice in one text is once"
    cache.ids_of(["aaa"])
    assert asked[5:] == ["aaa"], "what is longer than all that may be kept leaves nothing"


def test_a_conversation_of_20000_tokens_that_is_known_costs_little(tmp_path: Path) -> None:
    text = Text.load(text_models.thinking(tmp_path))
    messages = [
        {
            "role": ("user", "assistant")[number % 2],
            "content": f"The river of turn {number} is long, so say we all. " * 10,
        }
        for number in range(100)
    ]
    assert len(text.render(messages).ids) > 20_000
    more = [*messages, {"role": "user", "content": "Are you sure?"}]
    began = time.thread_time()
    prompt = text.render(more)
    assert time.thread_time() - began < 0.05
    assert prompt.ids == Text.load(tmp_path).render(more).ids
