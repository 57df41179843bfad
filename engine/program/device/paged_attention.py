"""Attention of a CUDA device: Triton's kernels over pages, over what was chosen, and over entries of several tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from engine.device.driver import Driver, Stream
from engine.program.device.buffers import DeviceBuffers, Rows
from engine.program.device.paged_caches import PagedCaches
from engine.program.device.paged_kernels import CHUNK, GROUP, TILE
from engine.program.device.step_data import Extent
from engine.program.device.triton_launch import TritonLauncher, block_of
from engine.program.ir import Op, Program

ATTENTION = ("attention", "compressed_attention")
_MOST_PARTS = 16  # of one token and kv head and of what it looks at, computed side by side
_ENOUGH_PROGRAMS = 512  # that keep a GPU busy; with more tokens there are fewer parts


@dataclass(frozen=True)
class Sight:
    """What the queries of an operation look at in one cache: 0 is no bound, and without a choice all in sight is seen.

    `chosen` has `sets` selections of a token, each for as many kv heads, of numbers of `run` entries.
    """

    cache: int
    window: int = 0
    chunk: int = 0
    chosen: Rows | None = None
    sets: int = 1
    run: int = 1

    @property
    def top_k(self) -> int:
        """Numbers of a selection; 0 where there is none."""
        return 0 if self.chosen is None else self.chosen.width // self.sets


def parts_for(tokens: int, programs_a_token: int) -> int:
    """Into how many parts the positions of a token are divided."""
    return max(1, min(_MOST_PARTS, _ENOUGH_PROGRAMS // max(1, tokens * programs_a_token)))


class PagedAttention:
    """Launches of `attention` and `compressed_attention`. `sinks` are the addresses of their vectors."""

    def __init__(
        self,
        driver: Driver,
        launcher: TritonLauncher,
        program: Program,
        caches: PagedCaches,
        buffers: DeviceBuffers,
        sinks: Mapping[str, int],
        max_tokens: int,
    ) -> None:
        self._launcher, self._caches, self._buffers, self._sinks = launcher, caches, buffers, sinks
        operations = [op for op in program.ops if op.kind in ATTENTION]
        rows = [self._rows(op, max_tokens) for op in operations]
        widths = [_v_dim(op) for op in operations]
        with ExitStack() as made:
            self._sums = driver.allocate(4 * max((r * w for r, w in zip(rows, widths, strict=True)), default=1))
            made.callback(self._sums.free)
            self._weights = driver.allocate(8 * max(rows, default=1))
            made.callback(self._weights.free)
            self._made = made.pop_all()

    def issue(self, stream: Stream, op: Op, extent: Extent) -> None:
        """The launches of one operation: append what it keeps, attend in parts, merge them."""
        queries, first, second, chosen = (*(self._named(name) for name in op.reads), None, None, None)[:4]
        assert queries is not None, "attention has queries"
        place = int(op.attrs["cache"])
        if first is not None:
            self._caches.append_keys(stream, place, first, extent)
        if op.kind == "attention":
            if second is not None:
                self._caches.append_values(stream, place, second, extent)
            sets, run = (int(op.attrs[name]) if chosen is not None else 1 for name in ("sets", "block"))
            sights = [Sight(place, int(op.attrs["window"]), int(op.attrs["chunk"]), chosen, sets, run)]
        else:
            sights = [Sight(place, int(op.attrs["window"]))]
            if second is not None:
                entries = int(op.attrs["entries"])
                self._caches.append_keys(stream, entries, second, extent)
                sights.append(Sight(entries, chosen=chosen))
        self._attend(stream, op, queries, sights, extent)

    def free(self) -> None:
        """Give all memory back."""
        self._made.close()

    def _attend(self, stream: Stream, op: Op, queries: Rows, sights: Sequence[Sight], extent: Extent) -> None:
        cache = self._caches[sights[0].cache]
        tokens, heads, v_dim = extent.layout.tokens, int(op.attrs["heads"]), _v_dim(op)
        a_head = heads // cache.kv_heads
        programs = cache.kv_heads * -(-a_head // GROUP)
        parts = parts_for(tokens, programs)
        softcap = _softcap(op)
        for number, sight in enumerate(sights):
            cache, layer = self._caches[sight.cache], self._caches.layers[sight.cache]
            chosen = sight.chosen or queries  # nobody reads it where nothing was chosen
            self._launcher.launch(
                stream,
                "attend_parts",
                {
                    "HEADS": a_head,
                    "KV_HEADS": cache.kv_heads,
                    "K_DIM": cache.k_dim,
                    "K_PLACE": layer.k_place,
                    "K_COLUMN": layer.k_column,
                    "V_DIM": v_dim,
                    "V_PADDED": layer.v_padded,
                    "V_BLOCK": block_of(v_dim),
                    "EVERY": cache.every,
                    "TOP_K": sight.top_k,
                    "SETS": sight.sets,
                    "RUN": sight.run,
                    "FIRST_PART": number * parts,
                    "PARTS": len(sights) * parts,
                    "CAPPED": int(softcap != 0.0),
                    "TILE": TILE,
                    "CHUNK": CHUNK,
                    "GROUP": GROUP,
                },
                (tokens, programs, parts),
                queries=queries.address,
                **self._caches.places(sight.cache, extent),
                chosen=chosen.address,
                part_sums=self._sums.address,
                part_weights=self._weights.address,
                query_stride=queries.stride,
                chosen_stride=chosen.stride,
                page_values=self._caches.page_values(sight.cache),
                key_values=layer.key_values,
                value_base=layer.value_base,
                value_values=layer.value_values,
                scale=float(op.attrs["scale"]),
                softcap=softcap,
                window=sight.window,
                chunk=sight.chunk,
            )
        self._merge(stream, op, len(sights) * parts, extent)

    def _merge(self, stream: Stream, op: Op, parts: int, extent: Extent) -> None:
        heads, v_dim = int(op.attrs["heads"]), _v_dim(op)
        (out,) = (self._buffers[name] for name in op.writes)
        sinks = self._sinks[op.weights[0]] if op.weights[0] else 0
        self._launcher.launch(
            stream,
            "merge_parts",
            {"HEADS": heads, "V_DIM": v_dim, "V_BLOCK": block_of(v_dim), "PARTS": parts, "HAS_SINKS": int(sinks != 0)},
            (extent.layout.tokens, heads, 1),
            part_sums=self._sums.address,
            part_weights=self._weights.address,
            sinks=sinks,
            live=extent.live(False),
            out=out.address,
            out_stride=out.stride,
        )

    def _named(self, name: str) -> Rows | None:
        return self._buffers[name] if name else None

    def _rows(self, op: Op, max_tokens: int) -> int:
        """The most (token, query head, part) there are in a step of any size."""
        heads, cache = int(op.attrs["heads"]), self._caches[int(op.attrs["cache"])]
        programs = cache.kv_heads * -(-(heads // cache.kv_heads) // GROUP)
        sights = 2 if op.kind == "compressed_attention" else 1
        return sights * max(tokens * heads * parts_for(tokens, programs) for tokens in range(1, max_tokens + 1))


def _v_dim(op: Op) -> int:
    """Values of a head's output; in compressed attention a key is its value."""
    return int(op.attrs["v_dim" if op.kind == "attention" else "dim"])


def _softcap(op: Op) -> float:
    return float(op.attrs["softcap"]) if op.kind == "attention" else 0.0
