"""The choice of what attention looks at, on a CUDA device: Triton scores, native/cuda/choose.cu finds the best."""

from __future__ import annotations

from dataclasses import dataclass

from engine.device.driver import Driver, Stream
from engine.memory.blocks import ContextRoom
from engine.program.device.buffers import DeviceBuffers
from engine.program.device.launching import cannot_run
from engine.program.device.mixer_data import MixerLayout, word_address
from engine.program.device.paged_caches import PagedCaches
from engine.program.device.paged_kernels import CHUNK, PAGE_TOKENS
from engine.program.device.step_data import Extent
from engine.program.device.triton_launch import TritonLauncher, block_of
from engine.program.ir import Op, Program
from engine.program.native import no_room

MOST_HEADS = 128  # of an indexer: all of them are held together
MOST_RUN = 256  # entries of a number, which are held together too
_GROUP_TOKENS = 32  # whose words have room at a time
_TILE = 64  # entries that a program looks at together
_MOST_PARTS, _ENOUGH_PROGRAMS = 64, 512
_CHOOSING_THREADS = 512
_WORD_BYTES = 4


@dataclass(frozen=True)
class Choice:
    """One operation `choose`, as kernels are told of it."""

    cache: int
    heads: int
    sets: int
    every: int
    run: int  # entries that a number stands for
    local: int
    top_k: int

    @staticmethod
    def of(program: Program, op: Op) -> Choice:
        """UnsupportedError for one that is too large for the kernels."""
        heads, cache = int(op.attrs["heads"]), int(op.attrs["cache"])
        sets = 1 if _weighted(op) else heads
        run, local, top_k = (int(op.attrs[name]) for name in ("block", "local", "top_k"))
        if heads > MOST_HEADS:
            raise cannot_run(op, f"its indexer has {heads} heads, and a GPU takes {MOST_HEADS}")
        if op.attrs["tail"]:
            raise cannot_run(op, "it chooses pools of tokens, for which there are no kernels yet")
        if run > MOST_RUN:
            raise cannot_run(op, f"it chooses among blocks of {run} entries, and a GPU takes {MOST_RUN}")
        return Choice(cache, heads, sets, program.caches[cache].every, run, local, top_k)

    def row_words(self, tokens: int) -> int:
        """Words of one set of one token in a step whose longest sequence has so many tokens; see choose.cu."""
        numbers = -(-(tokens // self.every) // self.run)
        return -(-numbers // 4) * 4


class Selections:
    """Launches of `choose`. Owns room for the words of a few tokens over contexts as long as there are pages for."""

    def __init__(
        self, driver: Driver, launcher: TritonLauncher, program: Program, caches: PagedCaches, buffers: DeviceBuffers
    ) -> None:
        self._driver, self._launcher, self._caches, self._buffers = driver, launcher, caches, buffers
        self._program = program
        self._choices = [Choice.of(program, op) for op in program.ops if op.kind == "choose"]
        self._words = driver.reserve(driver.memory()[0])

    def make_room(self, room: ContextRoom) -> None:
        """For sequences of all pages of a room. NoRoomError, and nothing is changed, where there is no memory."""
        tokens = room.pages * PAGE_TOKENS
        rows = (_GROUP_TOKENS * choice.sets * choice.row_words(tokens) for choice in self._choices)
        size = _WORD_BYTES * max(rows, default=0)
        if size > self._words.size:
            raise no_room(room)
        self._words.map(size)

    def issue(self, stream: Stream, op: Op, extent: Extent) -> None:
        """The launches of one operation: append the key that it has; score and choose, some tokens at a time."""
        choice = Choice.of(self._program, op)
        if len(op.reads) > 1 and op.reads[1]:
            self._caches.append_keys(stream, choice.cache, self._buffers[op.reads[1]], extent)
        tokens = extent.layout.tokens
        for first in range(0, tokens, _GROUP_TOKENS):
            count = min(_GROUP_TOKENS, tokens - first)
            self._score(stream, op, choice, extent, first, count)
            self._choose(stream, op, choice, extent, first, count)

    def free(self) -> None:
        """Give all memory back."""
        self._words.free()

    def _score(self, stream: Stream, op: Op, choice: Choice, extent: Extent, first: int, count: int) -> None:
        queries = self._buffers[op.reads[0]]
        weighted = _weighted(op)
        weights = self._buffers[op.reads[2]] if weighted else queries  # nobody reads them where there are none
        layer, k_dim = self._caches.layers[choice.cache], int(op.attrs["k_dim"])
        each = 1 << (choice.run - 1).bit_length()
        group = block_of(choice.heads)
        self._launcher.launch(
            stream,
            "score_numbers",
            {
                "HEADS": choice.heads,
                "K_DIM": k_dim,
                "K_PLACE": layer.k_place,
                "EVERY": choice.every,
                "RUN": choice.run,
                "LOCAL": choice.local,
                "TOP_K": choice.top_k,
                "WEIGHTED": int(weighted),
                "SETS": choice.sets,
                "ROWS": 1 if weighted else group,
                "GROUP": group,
                "NUMBERS": max(1, _TILE // each),
                "EACH": each,
                "CHUNK": CHUNK,
            },
            (count, max(1, min(_MOST_PARTS, _ENOUGH_PROGRAMS // count)), 1),
            queries=queries.address,
            weights=weights.address,
            **self._caches.places(choice.cache, extent),
            longest=_longest(extent),
            words=self._words.address,
            query_stride=queries.stride,
            weight_stride=weights.stride,
            page_values=self._caches.page_values(choice.cache),
            first=first,
        )

    def _choose(self, stream: Stream, op: Op, choice: Choice, extent: Extent, first: int, count: int) -> None:
        chosen = self._buffers[op.writes[0]]
        positions = extent.base + extent.layout.positions
        step = (self._words.address, _longest(extent), positions, extent.live(False), first)
        shape = (choice.sets, choice.every, choice.run, choice.top_k)
        self._driver.launch(
            stream,
            self._driver.kernel("choose_smallest"),
            (count * choice.sets, 1, 1),
            _CHOOSING_THREADS,
            (*step, *shape, chosen.address, chosen.stride),
        )


def _weighted(op: Op) -> bool:
    return len(op.reads) > 2 and bool(op.reads[2])


def _longest(extent: Extent) -> int:
    return word_address(extent, MixerLayout(extent.layout.tokens).longest)
