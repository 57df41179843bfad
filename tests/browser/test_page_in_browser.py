"""The page in a real browser: a conversation, the machine, memory moved by its sliders.

Pictures of it are saved in build/screenshots, for people to look at.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.browser import KEYS, Browser
from tests.server.running_front import RunningFront, start_front, write_fake_models

pytestmark = pytest.mark.long
PICTURES = Path(__file__).parents[2] / "build" / "screenshots"
SIZES = ((1280, 800), (390, 844))
SCHEMES = ("light", "dark")

THOUGHT = "The user wants a sorted list. Python's sorted() does that,\nand it is stable."
ANSWER = """Here it is:

```python
def in_order(names):
    return sorted(names, key=str.casefold)  # a line that is a good deal longer than a telephone is wide, in monospace
```

It is stable: equal names keep their order.

<img src="https://evil.example/x.png" onerror="document.title='owned'"><script>document.title='owned'</script>"""
SCRIPTED = f"Sort these names. [[[<think>\n{THOUGHT}\n</think>\n\n{ANSWER}]]]"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    write_fake_models(folder)
    return folder


@pytest.fixture
def front(models: Path, browser: Browser) -> Iterator[RunningFront]:
    """A front of the test's own. When it is done, nothing was complained of and nobody else was asked for anything."""
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        running = start_front(models, Path(folder))
        browser.complaints()
        browser.requested()
        yield running
        assert browser.complaints() == []
        asked_for = browser.requested()
        assert asked_for
        assert [url for url in asked_for if not url.startswith(running.url)] == []
        browser.open("about:blank")
        running.stop()


def choose(browser: Browser, model: str) -> None:
    browser.until(lambda: browser.count("#model option") > 1, "no models are listed")
    browser.run(
        "const picker = document.getElementById('model'); picker.value = arguments[0];"
        "picker.dispatchEvent(new Event('change'))",
        model,
    )


def say(browser: Browser, text: str) -> None:
    """Put text into the field and press Enter."""
    browser.run("document.getElementById('message').value = arguments[0]", text)
    browser.type("#message", KEYS["enter"])


def is_done(browser: Browser) -> bool:
    return browser.count("#stop[hidden]") == 1


def test_a_message_is_answered_as_it_comes_and_its_reasoning_stands_apart(
    browser: Browser, front: RunningFront
) -> None:
    browser.look(1280, 800, "light")
    browser.open(front.url)
    choose(browser, "scripted")
    say(browser, SCRIPTED)
    browser.until(lambda: browser.count(".assistant pre") == 1, "no code came")
    browser.until(lambda: is_done(browser), "the answer did not end")
    assert browser.text(".assistant > .body > p:last-child").startswith('<img src="https://evil.example/x.png"')
    assert browser.text(".assistant pre").startswith("def in_order(names):")
    assert browser.run("return document.querySelector('.assistant pre').dataset.language") == "python"
    assert browser.count(".assistant img, .assistant script") == 0
    assert browser.run("return document.title") == "freetoken"
    assert browser.run("return document.querySelector('.thinking').open") is False
    browser.click(".thinking summary")
    assert "and it is stable." in browser.text(".thinking .body")
    assert "reused 0 of" in browser.text(".ending")
    assert "tokens/s" in browser.text(".ending")
    assert browser.text("#problem") == ""
    say(browser, "And [[[backwards]]]?")
    browser.until(lambda: browser.count(".assistant") == 2 and is_done(browser), "the second answer did not end")
    assert browser.text(".assistant:last-child .body:not(.thinking .body)") == "backwards"
    assert "reused 0 of" not in browser.text(".assistant:last-child .ending"), "the conversation is sent whole"
    browser.click("#clear")
    assert browser.count("#log > *") == 0


def test_an_answer_is_streamed_and_can_be_stopped(browser: Browser, front: RunningFront) -> None:
    browser.look(1280, 800, "light")
    browser.open(front.url)
    choose(browser, "scripted")
    say(browser, f"Count. [[[{' '.join(str(number) for number in range(9000))}]]]")
    browser.until(lambda: len(browser.text(".assistant > .body")) > 50, "nothing came")
    first = len(browser.text(".assistant > .body"))
    assert not is_done(browser)
    browser.until(lambda: len(browser.text(".assistant > .body")) > first, "it did not grow")
    browser.click("#stop")
    browser.until(lambda: is_done(browser), "it did not stop")
    assert browser.text(".ending") == "Stopped."
    browser.until(lambda: front.stats("scripted")["active"] == 0, "the worker still answers")
    assert "0 1 2 3 4 5" in browser.text(".assistant > .body")


def test_a_long_prompt_tells_how_far_it_is_and_what_was_stopped_before_it_spoke_is_not_lost(
    browser: Browser, front: RunningFront
) -> None:
    browser.look(1280, 800, "light")
    browser.open(front.url)
    front.control("load", model="fake", kv_tokens=4096)
    choose(browser, "fake")
    say(browser, "a" * 3000)
    browser.until(lambda: browser.text("#progress").startswith("Reading "), "it does not say how far it is")
    assert browser.text("#progress").endswith(" of 3019 tokens…")
    browser.type("#log", KEYS["escape"])
    browser.until(lambda: is_done(browser), "it did not stop")
    assert browser.count("#log > *") == 0
    assert browser.run("return document.getElementById('message').value") == "a" * 3000
    browser.until(lambda: front.stats()["active"] == 0, "the worker still reads")


def test_text_that_comes_in_pieces_looks_as_it_does_at_once(browser: Browser, front: RunningFront) -> None:
    browser.look(1280, 800, "light")
    browser.open(front.url)
    texts = [
        ANSWER,
        "~~~~c++\n~~~\n~~~~\nx",
        "a\n```\nopen",
        "``` `no` fence",
        "1. a\n   - b\n\n\n   c\n```\n\n```",
        "\n\n",
    ]
    pieces = """
        const {show} = await import('/page/text.js');
        const looks = (node) => [...node.children].map((e) => [e.tagName, e.dataset.language ?? '', e.textContent]);
        return arguments[0].map((text) => {
            const [grown, whole] = [document.createElement('div'), document.createElement('div')];
            for (let end = 0; end <= text.length; end += 1) show(grown, text.slice(0, end));
            show(whole, text);
            return [looks(grown), looks(whole)];
        });
    """
    shown = browser.run(f"return (async function () {{ {pieces} }})(...arguments)", texts)
    assert [grown for grown, _ in shown] == [whole for _, whole in shown]
    assert [whole for _, whole in shown][1:] == [
        [["PRE", "c++", "~~~"], ["P", "", "x"]],
        [["P", "", "a"], ["PRE", "", "open"]],
        [["P", "", "``` `no` fence"]],
        [["P", "", "1. a\n   - b"], ["P", "", "   c"], ["PRE", "", ""]],
        [],
    ]


def test_a_model_that_fails_is_a_sentence_and_the_question_is_not_lost(browser: Browser, front: RunningFront) -> None:
    browser.look(390, 844, "light")
    browser.open(front.url)
    choose(browser, "broken")
    say(browser, "Are you well?")
    browser.until(lambda: browser.text("#problem") != "", "no problem was told")
    assert browser.text("#problem") == "The bank is short. Convert the model again."
    assert browser.run("return document.getElementById('message').value") == "Are you well?"
    assert browser.count("#log > *") == 0
    browser.shoot(PICTURES / "failed.png")
    (complaint,) = browser.complaints()
    assert "500" in complaint, "a browser tells of every failed request"


def test_memory_is_moved_by_the_sliders(browser: Browser, front: RunningFront) -> None:
    browser.look(1280, 800, "light")
    browser.open(front.url)
    front.control("load", model="fake", device="sim", experts="50%", kv_tokens=1600)
    choose(browser, "fake")
    browser.until(lambda: browser.count("#sliders:not([hidden])") == 1, "there are no sliders")
    assert "32 slots" in browser.text("#figures")
    browser.type("#experts", KEYS["left"] * 5)
    browser.until(lambda: browser.text("#moved").startswith("Moved in"), "nothing was moved")
    (state,) = front.control("ps")["models"]
    assert state["expert_slots"] == 28
    browser.until(lambda: "28 slots" in browser.text("#figures"), "the new room is not shown")
    browser.type("#kv", KEYS["left"] * 8)
    browser.until(lambda: front.control("ps")["models"][0]["kv_tokens"] < 1000, "context memory was not moved")
    browser.type("#experts", KEYS["home"] + KEYS["right"])
    browser.until(lambda: "Give --experts 2 or more" in browser.text("#moved.refused"), "no refusal is told")
    assert browser.text("#experts-slider output") == "44 %", "the old size stands"
    assert "28 slots" in browser.text("#figures")
    browser.shoot(PICTURES / "refused.png")
    (complaint,) = browser.complaints()
    assert "507" in complaint


def test_a_key_is_asked_for_once(models: Path, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> None:
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        front = start_front(models, Path(folder), api_key="secret")
        browser.open(front.url)
        browser.until(lambda: browser.count("dialog[open]") == 1, "no key is asked for")
        browser.run("document.getElementById('key-dialog').close()")
        browser.until(lambda: browser.count("dialog[open]") == 1, "it can be put away, and nothing works")
        browser.type("#key", "wrong" + KEYS["enter"])
        browser.until(lambda: browser.text("#key-wrong") == "That was another one.", "a wrong key is not told")
        browser.shoot(PICTURES / "key.png")
        browser.type("#key", "secret" + KEYS["enter"])
        browser.until(lambda: browser.count("#model option") > 1, "no models are listed")
        browser.open(front.url)
        browser.until(lambda: browser.count("#model option") > 1, "the key was forgotten")
        assert browser.run("return Object.keys(localStorage).length + document.cookie.length") == 0
        assert all("401" in complaint for complaint in browser.complaints())
        browser.open("about:blank")
        front.stop()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_it_fits_and_is_legible(browser: Browser, front: RunningFront, width: int, height: int, scheme: str) -> None:
    browser.look(width, height, scheme)
    browser.open(front.url)
    choose(browser, "scripted")
    say(browser, SCRIPTED)
    browser.until(lambda: browser.count(".ending") == 1 and is_done(browser), "the answer did not end")
    browser.click(".thinking summary")
    browser.shoot(PICTURES / f"chat-{width}-{scheme}.png")
    front.control("load", model="fake", device="sim", experts="50%", kv_tokens=1600)
    browser.click("#clear")
    choose(browser, "fake")
    say(browser, "hi")
    browser.until(lambda: "Hit rate" in browser.run("return document.body.textContent"), "no hit rate is shown")
    browser.run("document.getElementById('machine').open = true")
    browser.shoot(PICTURES / f"machine-{width}-{scheme}.png")
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run("return document.documentElement.scrollHeight") <= height
    assert browser.run(
        "return [...document.querySelectorAll('#composer button:not([hidden])')].every((button) => {"
        "const {right, bottom} = button.getBoundingClientRect(); return right <= innerWidth && bottom <= innerHeight})"
    )


def test_everything_has_a_name_for_who_does_not_see_it(browser: Browser, front: RunningFront) -> None:
    browser.look(1280, 800, "light")
    browser.open(front.url)
    front.control("load", model="fake", device="sim", experts="50%", kv_tokens=1600)
    choose(browser, "fake")
    browser.until(lambda: browser.count("#sliders:not([hidden])") == 1, "there are no sliders")
    assert browser.role_and_name("#message") == ("textbox", "Message")
    assert browser.role_and_name("#model") == ("combobox", "Model")
    assert browser.role_and_name("#send") == ("button", "Send")
    assert browser.role_and_name("#experts") == ("slider", "Experts on the device")
    assert browser.role_and_name("#kv") == ("slider", "Context memory")
    assert browser.role_and_name("#log") == ("log", "Conversation")
