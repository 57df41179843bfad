"""An engine over a fake executor, and somebody who hears all that it says."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from engine.base.units import KvBudget
from engine.worker.engine import Engine
from engine.worker.protocol import Done, Failed, Generate, GetStats, Message, Resize, Sampling, Stats, Tokens
from engine.worker.scheduler import POLICY, Policy
from tests.unit.fake_executor import FakeExecutor, fake_model

GREEDY = Sampling(temperature=0)
actions = st.one_of(
    st.tuples(st.just("generate"), st.integers(0, 3), st.integers(1, 90), st.integers(1, 60)),
    st.tuples(st.just("cancel"), st.integers(1, 12)),
    st.tuples(st.just("resize"), st.integers(1, 400)),
    st.tuples(st.just("step"), st.integers(1, 15)),
)


class Front:
    """Collects what an engine says, by request."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.tokens: dict[int, list[int]] = {}
        self.done: dict[int, Done] = {}
        self.failed: dict[int | None, Failed] = {}
        self.log: list[Message] = []

    def hear(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.log.append(message)
            if isinstance(message, Tokens):
                assert message.request not in self.done
                self.tokens.setdefault(message.request, []).extend(message.ids)
            elif isinstance(message, Done):
                self.done[message.request] = message
            elif isinstance(message, Failed):
                self.failed[message.request] = message

    def send(self, message: Message) -> None:
        self.hear(self.engine.handle(message))

    def generate(self, number: int, prompt: list[int], max_tokens: int, sampling: Sampling = GREEDY) -> None:
        self.send(Generate(number, tuple(prompt), max_tokens, (), sampling))

    def run(self, most: int = 5000) -> None:
        for _ in range(most):
            if not self.engine.busy:
                return
            self.hear(self.engine.step())
        raise AssertionError(f"still busy after {most} steps")

    def stats(self) -> dict[str, float]:
        (stats,) = self.engine.handle(GetStats(1))
        assert isinstance(stats, Stats)
        return dict(stats.values)

    def resize(self, **budget: int) -> Message:
        (message,) = self.engine.handle(Resize(1, KvBudget(**budget)))
        return message


def make(kv_tokens: int = 1024, context: int | None = None, policy: Policy = POLICY) -> tuple[Front, FakeExecutor]:
    model = fake_model(kv_tokens, context)
    assert isinstance(model.executor, FakeExecutor)
    return Front(Engine(model, policy)), model.executor
