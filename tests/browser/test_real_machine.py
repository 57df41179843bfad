"""The page beside a real model on the simulated device and on the CPU: its figures are what the worker counted."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

import engine.front
from tests.browser.browser import KEYS, Browser
from tests.server.running_front import RunningFront, start_front
from tests.server.test_real_model import model_store  # noqa: F401 - a fixture

pytestmark = pytest.mark.long
PICTURES = Path(__file__).parents[2] / "build" / "screenshots"


def figures(browser: Browser) -> dict[str, list[str]]:
    """The lines of every figure, by its name."""
    lines = "row.innerText.split('\\n').filter(Boolean)"
    rows = browser.run(f"return [...document.querySelectorAll('#figures > div')].map((row) => {lines})")
    return {name: rest for name, *rest in rows}


def answer_one(browser: Browser, front: RunningFront) -> None:
    browser.look(1280, 800, "light")
    browser.open(front.url)
    browser.until(lambda: browser.count("#sliders:not([hidden])") == 1, "the model is not shown as loaded")
    browser.type("#message", "hello" + KEYS["enter"])
    browser.until(lambda: browser.text(".ending") != "", "no answer ended")
    generated = f"{front.stats('tiny')['generated_tokens']:,.0f} so far"
    browser.until(lambda: generated in browser.text("#figures"), "the tokens are not counted")
    browser.until(lambda: "Since the model" in browser.text("#span"), "it never came to rest")


@pytest.mark.parametrize("device", ["sim", "cpu"])
def test_the_figures_are_what_the_worker_counted(
    browser: Browser,
    model_store: Path,  # noqa: F811
    device: str,
) -> None:
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        script = Path(engine.front.__path__[0]) / "__main__.py"
        front = start_front(model_store, Path(folder), script=script)
        flags = {"experts": "50%"} if device == "sim" else {}
        assert "error" not in front.control("load", model="tiny", device=device, kv_tokens=512, **flags)
        answer_one(browser, front)
        stats = front.stats("tiny")
        shown = figures(browser)
        browser.shoot(PICTURES / f"real-{device}.png")
        browser.open("about:blank")
        front.stop()
    assert shown["Speed"][0] == "0 tokens/s"
    assert shown["Context memory"][0] == "0 of 512 tokens"
    if device == "cpu":
        assert shown.keys() == {"Speed", "Memory", "Context memory"}, "what a CPU has not got is absent"
        assert shown["Memory"][0].endswith("B/s")
        return
    counts = stats["experts"]["counts"]  # type: ignore[index]
    assert counts["misses"] > 0
    assert shown["Hit rate"][0] == f"{100 * counts['hits'] / (counts['hits'] + counts['misses']):.0f} %"
    filled, computed = f"{counts['fills']:,.0f} filled", f"{counts['cpu_experts']:,.0f} computed"
    assert shown["Misses"][0] == f"{filled}, {computed}"
    assert shown["Link"][0].endswith("B/s")
    assert shown["Memory"][0].endswith("B/s")
    assert shown["Experts on the device"][0] == f"{stats['expert_slots']:.0f} slots"
