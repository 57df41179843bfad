"""What a client asks for, whatever the interface."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.base.sampling import PARAMETERS
from engine.front.forms.tools import ToolUse
from engine.front.jobs import Reader
from engine.worker.protocol import Sampling


@dataclass(frozen=True)
class Asked:
    """What both kinds of request have in common. `logprobs` -1: none wanted."""

    model: str
    stream: bool
    include_usage: bool
    choices: int
    max_tokens: int | None
    stops: tuple[str, ...]
    ignore_eos: bool
    logprobs: int
    values: Mapping[str, Any]

    def sampling(self, choice: int, defaults: Mapping[str, float], seed: int) -> Sampling:
        """How choice number `choice` is sampled, with the model's `defaults` where the request says nothing."""
        numbers = {
            name: given(self.values[name], defaults.get(name, parameter.default))
            for name, parameter in PARAMETERS.items()
        }
        numbers |= {"top_k": max(0, numbers["top_k"]), "seed": seed}
        return Sampling(**numbers, logit_bias=self.values["logit_bias"], choice=choice, logprobs=self.logprobs)

    @property
    def seed(self) -> int:
        """The request's seed, or a fresh one."""
        return int(given(self.values["seed"], secrets.randbits(63)))


@dataclass(frozen=True)
class ThoughtBudget:
    """How many tokens of reasoning an answer may have, and the member of the request that said so."""

    tokens: int
    field: str


@dataclass(frozen=True)
class ChatAsked(Asked):
    """An answer to messages as the chat template takes them, with extra variables for it, and tools.

    The answer goes on after the words `prefill`, which are not told again, and has to follow `grammar` if there is one.
    Without `reads_reasoning` reasoning between marks is text like any other. `ignored` are the members of the request,
    tools among them, that change nothing.
    """

    messages: tuple[Mapping[str, Any], ...]
    template_values: Mapping[str, Any]
    tools: ToolUse
    prefill: str = ""
    grammar: str = ""
    reads_reasoning: bool = True
    ignored: tuple[str, ...] = ()
    budget: ThoughtBudget | None = None

    def idle(self, reader: Reader) -> tuple[str, ...]:
        """What of the request changes nothing of an answer that is read and held by `reader`."""
        offer = self.tools.offer
        forms = {**{name: grammar.field for name, grammar in offer.grammars.items()}, **offer.strict}
        unheld = (place for name, place in forms.items() if name not in reader.enforced)
        budget = () if self.budget is None or reader.bound is not None else (self.budget.field,)
        return (*self.ignored, *unheld, *budget)


def values_of(**chosen: Any) -> Mapping[str, Any]:
    """`Asked.values` of a request that says so much about sampling, and nothing else."""
    return {**dict.fromkeys(PARAMETERS), "logit_bias": {}, **chosen}


def given(value: Any, default: Any) -> Any:
    """`value`, or `default` where it is None."""
    return default if value is None else value
