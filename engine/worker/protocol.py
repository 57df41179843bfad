"""What the front and a worker say to each other, over a socket pair as `engine.worker.wire` writes it. Token ids,
never text.

Nothing heavy is imported here, because the front reads this file too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from engine.base.errors import FreetokenError, error_named
from engine.base.sampling import PARAMETERS
from engine.base.spelling import CharacterEdges, Spelling
from engine.base.units import KvBudget
from engine.memory.lookup import Reuse
from engine.memory.retention import Anchor

PROTOCOL_VERSION = 12
LINK_FD = 0  # the worker's end of the socket pair is its standard input


def experts_notes(device: str, experts: str | None) -> tuple[str, ...]:
    """What somebody is told who gives room for experts to a device that caches none."""
    if experts is None or device != "cpu":
        return ()
    return ("--experts has no effect on the cpu: experts run in place from memory.",)


def read_kv(value: dict[str, Any] | None) -> KvBudget | None:
    """A budget as JSON has it."""
    return None if value is None else KvBudget(**value)


@dataclass(frozen=True)
class WorkerConfig:
    """The one argument of a worker. None: nobody asked, the worker decides."""

    model: str  # folder of the FTW model
    device: str = "cpu"
    threads: int | None = None
    context: int | None = None
    kv: KvBudget | None = None
    experts: str | None = None  # as `units.parse_experts` reads it
    profile: str = ""  # file of the machine's profile; "": there is none
    isa: str = ""  # of the kernels; "" takes the fastest
    sim_memory: int = 0  # bytes of a simulated GPU; 0: `loading.sim_memory` decides
    sim_record_bytes: int = 0  # what a record counts for on its virtual clock; 0: the bytes that it has
    parent: int = 0  # process id of the front; 0: do not watch it

    def to_json(self) -> str:
        return json.dumps(vars(self), default=vars)

    @staticmethod
    def from_json(text: str) -> WorkerConfig:
        values = json.loads(text)
        return WorkerConfig(**{**values, "kv": read_kv(values["kv"])})


@dataclass(frozen=True)
class Passages:
    """Passages of an answer, each from one of `opens` to one of `closes`; the first has perhaps `begun` with the
    prompt.
    """

    opens: tuple[Spelling, ...]
    closes: tuple[Spelling, ...]
    begun: bool = False


@dataclass(frozen=True)
class Grammar:
    """What an answer has to look like, in llguidance's notation.

    It holds from the start, or from behind the marker `after`, which means nothing in the passages `aside`; unless the
    prompt has `begun` what it describes, with the marker and these tokens. When it is complete the answer ends, or,
    with `then_free`, goes on as it likes, with `again` until the marker comes once more. So does one that begins with
    the marker `unless` instead.
    """

    text: str
    after: Spelling | None = None
    then_free: bool = False
    unless: Spelling | None = None
    again: bool = False
    aside: Passages | None = None
    begun: tuple[int, ...] | None = None


@dataclass(frozen=True)
class ThoughtBound:
    """At most so many `tokens` of reasoning, all of an answer's together.

    It opens with one of `opens`, or has `begun` with the prompt, and closes with one of `closes`. Once `tokens` have
    come, the next ones make its last character whole, by `characters`; then come those of `closing`, whatever the
    logits say, and right behind them none of `barred`.
    """

    tokens: int
    opens: tuple[Spelling, ...]
    closes: tuple[Spelling, ...]
    closing: tuple[int, ...]
    begun: bool = False
    barred: tuple[int, ...] = ()
    characters: CharacterEdges = field(default_factory=CharacterEdges)


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen from logits, in this order: bound of reasoning, grammars, bias and penalties, temperature,
    top-k, top-p, min-p.

    temperature 0 is greedy. top_k 0, top_p 1, min_p 0 and penalties 1, 0, 0 do nothing. Equal seed and choice give
    equal tokens. `logprobs` -1 reports none, k >= 0 the chosen token's and the k most likely ones'.
    """

    temperature: float = PARAMETERS["temperature"].default
    top_k: int = PARAMETERS["top_k"].default
    top_p: float = PARAMETERS["top_p"].default
    min_p: float = PARAMETERS["min_p"].default
    repetition_penalty: float = PARAMETERS["repetition_penalty"].default
    frequency_penalty: float = PARAMETERS["frequency_penalty"].default
    presence_penalty: float = PARAMETERS["presence_penalty"].default
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    choice: int = 0
    logprobs: int = -1
    grammars: tuple[Grammar, ...] = ()
    thought: ThoughtBound | None = None


@dataclass(frozen=True)
class TokenLogprob:
    """Natural logarithms of the model's own probabilities, before bias, penalties and temperature."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Message:
    """Base of everything on the link; `kind` is its name on the wire."""

    kind: ClassVar[str] = ""


# Front to worker


@dataclass(frozen=True)
class Generate(Message):
    """Continue `prompt`. A token of `stop_ids` ends the answer and is not reported.

    Anchors are where a later prompt is likely to part from this one: edges of turns, thinking and tools. `anchors` are
    those in the prompt, ascending: how many tokens lie before the edge, and whether something opens there (True) or
    has just closed. `anchor_ids` are the tokens that open (True, the edge is before them) or close something wherever
    the model generates them, `anchor_runs` what several tokens in a row spell that does.
    """

    kind: ClassVar[str] = "generate"
    request: int
    prompt: tuple[int, ...]
    max_tokens: int
    stop_ids: tuple[int, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    anchors: tuple[Anchor, ...] = ()
    anchor_ids: Mapping[int, bool] = field(default_factory=dict)
    anchor_runs: tuple[tuple[tuple[int, ...], bool], ...] = ()


@dataclass(frozen=True)
class Cancel(Message):
    """Drop a request, or the save or restore of that ticket, before the next step; there is no answer. An unknown or
    finished one is fine: requests and tickets are numbered together."""

    kind: ClassVar[str] = "cancel"
    request: int


@dataclass(frozen=True)
class Resize(Message):
    """Change the budgets of a live worker. Answer: `Resized` or `Failed` under the same ticket.

    `experts` is text as `units.parse_experts` reads it.
    """

    kind: ClassVar[str] = "resize"
    ticket: int
    kv: KvBudget | None = None
    experts: str | None = None


@dataclass(frozen=True)
class GetStats(Message):
    """Answer: `Stats` under the same ticket."""

    kind: ClassVar[str] = "get_stats"
    ticket: int


@dataclass(frozen=True)
class SaveContext(Message):
    """Write what context memory knows of `tokens` to the file `path`. Answer: `ContextSaved` or `Failed`."""

    kind: ClassVar[str] = "save_context"
    ticket: int
    path: str
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class LoadContext(Message):
    """Take the contents of a file of `SaveContext` into context memory. Answer: `ContextLoaded` or `Failed`."""

    kind: ClassVar[str] = "load_context"
    ticket: int
    path: str


@dataclass(frozen=True)
class Stop(Message):
    """Leave after the current step."""

    kind: ClassVar[str] = "stop"


# Worker to front


@dataclass(frozen=True)
class ExpertCache:
    """The room for experts on a device: `slots` of all banks together, `bytes`, and their `share` of all experts."""

    slots: int
    bytes: int
    share: float


COUNTED_EXPERTS = (
    "hits", "misses", "fills", "cpu_experts", "plans", "link_bytes", "link_seconds", "host_bytes", "host_seconds",
)  # fmt: skip
"""What is counted of the experts of a device: routed and there, or not; filled, or computed by the CPU; layers of
steps; and the bytes and seconds of both branches."""


@dataclass(frozen=True)
class ExpertWork:
    """What happened to the experts of a device over some steps, and how misses are divided at their end.

    `counts` are by the names of `COUNTED_EXPERTS`; `fraction` of the misses are filled, and `why` says a sentence.
    `clock` names the virtual machine whose seconds these are on a simulated device; "" for measured ones.
    """

    counts: Mapping[str, float]
    fraction: float
    why: str
    clock: str = ""

    def since(self, before: Mapping[str, float]) -> ExpertWork:
        """The work after the counts were `before`."""
        return replace(self, counts={name: count - before.get(name, 0.0) for name, count in self.counts.items()})

    def plus(self, later: ExpertWork) -> ExpertWork:
        """This and more work, which ended later."""
        return replace(later, counts={name: count + self.counts[name] for name, count in later.counts.items()})


@dataclass(frozen=True)
class Ready(Message):
    """The model is loaded. Sizes in bytes or tokens, times in seconds.

    `cache` is None where experts run in place from memory; `device_total`, the bytes of the device, is then 0.
    """

    kind: ClassVar[str] = "ready"
    version: int
    device: str
    threads: int
    context: int  # the longest conversation here
    context_limit: int  # the longest that any budget gives: what was asked for, else the model's
    context_border: int | None  # `memory.budget.crosses` says what for
    kv_tokens: int
    kv_bytes_per_token: int  # in layers that keep everything
    kv_bytes: int  # of all context memory: pages, window pages and states
    model_bytes: int
    load_seconds: float
    cache: ExpertCache | None = None
    device_total: int = 0
    device_text: str = ""  # the device as people know it; "" for the cpu
    notes: tuple[str, ...] = ()  # said once to the user


@dataclass(frozen=True)
class Progress(Message):
    """Prompt tokens that are in the cache, `reused` of them without computing. The first one says: accepted."""

    kind: ClassVar[str] = "progress"
    request: int
    computed: int
    reused: int
    total: int


@dataclass(frozen=True)
class Tokens(Message):
    """The next tokens of an answer; `logprobs` is as long as `ids`, or empty when none were asked for."""

    kind: ClassVar[str] = "tokens"
    request: int
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Done(Message):
    """An answer is complete. `reason` is stop (a stop id) or length. `generated` counts a stop id too.

    `decode_bytes` are the weights read while it was decoded, and `experts` what happened then on a device, for all
    requests of those steps together.
    """

    kind: ClassVar[str] = "done"
    request: int
    reason: str
    prompt_tokens: int
    cached_tokens: int
    generated: int
    prompt_seconds: float
    decode_seconds: float
    decode_bytes: int
    experts: ExpertWork | None = None
    reuse: Reuse | None = None


@dataclass(frozen=True)
class Stats(Message):
    """Totals since the start and the state now; `experts` since the start."""

    kind: ClassVar[str] = "stats"
    ticket: int
    values: Mapping[str, float]
    experts: ExpertWork | None = None


@dataclass(frozen=True)
class Resized(Message):
    """The budgets before and after: context in tokens, the experts' cache as in `Ready`.

    `seconds` is how long no step could be taken. Ticket 0: nobody asked, the worker made way or took what was free.
    """

    kind: ClassVar[str] = "resized"
    ticket: int
    kv_before: int
    kv_after: int
    context: int
    kv_bytes: int
    seconds: float
    cache_before: ExpertCache | None = None
    cache_after: ExpertCache | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ContextSaved(Message):
    """A file holds the context of the first `saved` tokens, whole pages of them, in `bytes` bytes."""

    kind: ClassVar[str] = "context_saved"
    ticket: int
    saved: int
    bytes: int


@dataclass(frozen=True)
class ContextLoaded(Message):
    """Of the `total` tokens of a file, the first `loaded` are in context memory now; the others found no room."""

    kind: ClassVar[str] = "context_loaded"
    ticket: int
    loaded: int
    total: int


@dataclass(frozen=True)
class Failed(Message):
    """A request, a ticket, or (with neither) the whole worker failed. `error` names a type of `engine.base.errors`."""

    kind: ClassVar[str] = "failed"
    error: str
    message: str
    remedy: str = ""
    request: int | None = None
    ticket: int | None = None

    @staticmethod
    def of(error: FreetokenError, *, request: int | None = None, ticket: int | None = None) -> Failed:
        return Failed(type(error).__name__, error.message, error.remedy, request, ticket)

    def exception(self) -> FreetokenError:
        kind = error_named(self.error) or FreetokenError
        return kind(self.message, self.remedy)


FROM_FRONT: tuple[type[Message], ...] = (Generate, Cancel, Resize, GetStats, SaveContext, LoadContext, Stop)
FROM_WORKER: tuple[type[Message], ...] = (
    Ready, Progress, Tokens, Done, Stats, Resized, ContextSaved, ContextLoaded, Failed,
)  # fmt: skip
