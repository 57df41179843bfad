"""Lowering of attention to a window and to entries that each stand for several tokens."""

from __future__ import annotations

from dataclasses import replace

from engine.program.ir import Cache
from engine.program.lowering.angles import rope_table
from engine.program.lowering.attention import reach_of_window
from engine.program.lowering.build import Build
from engine.spec.compressed import CompressedAttention, Compression, EntryIndexer


def lower_compressed_attention(build: Build, mixer: CompressedAttention, source: str, target: str) -> None:
    heads, dim, groups = mixer.heads, mixer.head_dim, mixer.out_groups
    q_a, q = build.buffer("q_a", mixer.q_lora_rank), build.buffer("q", heads * dim)
    kv, mixed = build.buffer("kv", dim), build.buffer("mixed", heads * dim)
    build.linears(source, {q_a: "attn.q_a", kv: "attn.kv"})
    build.norm(q_a, q_a, "attn.q_a_norm", eps=mixer.norm_eps)
    build.norm(kv, kv, "attn.kv_norm", eps=mixer.norm_eps)
    build.linears(q_a, {q: "attn.q"})
    build.op("rms_norm", (q,), (q,), ("",), eps=mixer.norm_eps, group=dim)
    _rope(build, mixer, q, heads, dim)
    _rope(build, mixer, kv, 1, dim)
    attrs = {"heads": heads, "dim": dim, "scale": mixer.scale, "window": mixer.window}
    own = build.cache(Cache(1, dim, 0, reach_of_window(build, mixer.window)))
    reads: tuple[str, ...] = (q, kv)
    entries = -1
    if mixer.compression is not None:
        entry = _entries(build, mixer, mixer.compression, source, "attn.entries", dim)
        entries = build.cache(Cache(1, dim, 0, every=mixer.compression.rate))
        indexer = mixer.compression.indexer
        chosen = () if indexer is None else (_chosen(build, mixer, mixer.compression, indexer, source, q_a),)
        reads = (*reads, entry, *chosen)
    sinks = (build.weight("attn.sinks"),)
    build.op("compressed_attention", reads, (mixed,), sinks, **attrs, cache=own, entries=entries)
    _rope(build, mixer, mixed, heads, dim, back=True)
    narrow = build.buffer("mixed_narrow", groups * mixer.out_rank)
    build.head_linear(mixed, narrow, "attn.o_a", groups, (heads * dim // groups, 0), (mixer.out_rank, 0))
    build.linears(narrow, {target: "attn.o"})


def _entries(
    build: Build, mixer: CompressedAttention, compression: Compression, source: str, key: str, dim: int
) -> str:
    """Entries of `dim` values in the rows of the tokens that complete them; rows of other tokens have no meaning."""
    series, name = compression.series, key.removeprefix("attn.")
    kv, gate = build.buffer(f"{name}_kv", series * dim), build.buffer(f"{name}_gate", series * dim)
    entry = build.buffer(f"{name}_entry", dim)
    build.linears(source, {kv: f"{key}_kv", gate: f"{key}_gate"})
    build.op(
        "compress",
        (kv, gate),
        (entry,),
        (build.weight(f"{key}_bias"),),
        state=build.state(3 * dim * series),
        every=compression.rate,
        overlap=compression.overlap,
    )
    build.norm(entry, entry, f"{key}_norm", eps=mixer.norm_eps)
    _rope(build, mixer, entry, 1, dim, every=compression.rate)
    return entry


def _chosen(
    build: Build, mixer: CompressedAttention, compression: Compression, indexer: EntryIndexer, source: str, q_a: str
) -> str:
    """The numbers of the best entries, by the scores of an indexer."""
    entry = _entries(build, mixer, compression, source, "attn.index", indexer.head_dim)
    q = build.buffer("index_q", indexer.heads * indexer.head_dim)
    weights = build.buffer("index_weights", indexer.heads)
    build.linears(q_a, {q: "attn.index_q"})
    build.linears(source, {weights: "attn.index_weights"})
    _rope(build, mixer, q, indexer.heads, indexer.head_dim)
    chosen = build.buffer("chosen", indexer.top_k, dtype="i32")
    build.op(
        "choose",
        (q, entry, weights),
        (chosen,),
        cache=build.cache(Cache(1, indexer.head_dim, 0, every=compression.rate)),
        heads=indexer.heads,
        k_dim=indexer.head_dim,
        top_k=indexer.top_k,
        block=1,
        local=0,
        tail=False,
    )
    return chosen


def _rope(
    build: Build, mixer: CompressedAttention, buffer: str, heads: int, width: int, *, back: bool = False, every: int = 1
) -> None:
    """Rotates the last values of every head, or turns them `back`; with `every` by the first position of an entry."""
    table = replace(rope_table(mixer.rope, build.context), every=every)
    if back:
        table = replace(table, inv_freq=tuple(-value for value in table.inv_freq))
    build.rope(buffer, mixer.rope, heads=heads, stride=width, offset=width - mixer.rope.dim, table=table)
