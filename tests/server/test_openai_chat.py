"""The official client against a real front: what an application would do."""

from __future__ import annotations

import openai
from conftest import RunningFront
from fake_executor import answer

IM_START, IM_END = 256, 257


def test_a_greedy_chat_is_the_models_own_continuation(front: RunningFront) -> None:
    completion = front.openai.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "hello"}], temperature=0, max_tokens=12
    )
    print(completion)
