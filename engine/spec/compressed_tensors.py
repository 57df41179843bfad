"""The tensors of attention to compressed entries."""

from __future__ import annotations

from collections.abc import Iterator

from engine.spec.compressed import CompressedAttention, Compression
from engine.spec.wanted import Wanted, vector


def compressed_attention_tensors(mixer: CompressedAttention, hidden: int) -> Iterator[Wanted]:
    width = mixer.heads * mixer.head_dim
    yield Wanted("attn.q_a", mixer.q_lora_rank, hidden)
    yield vector("attn.q_a_norm", mixer.q_lora_rank)
    yield Wanted("attn.q", width, mixer.q_lora_rank)
    yield Wanted("attn.kv", mixer.head_dim, hidden)
    yield vector("attn.kv_norm", mixer.head_dim)
    yield vector("attn.sinks", mixer.heads)
    yield Wanted("attn.o_a", mixer.out_groups * mixer.out_rank, width // mixer.out_groups, mixer.out_groups, apart=True)
    yield Wanted("attn.o", hidden, mixer.out_groups * mixer.out_rank)
    compression = mixer.compression
    if compression is None:
        return
    yield from _compressor("attn.entries", compression, mixer.head_dim, hidden)
    indexer = compression.indexer
    if indexer is not None:
        yield from _compressor("attn.index", compression, indexer.head_dim, hidden)
        yield Wanted("attn.index_q", indexer.heads * indexer.head_dim, mixer.q_lora_rank)
        yield Wanted("attn.index_weights", indexer.heads, hidden)


def _compressor(key: str, compression: Compression, width: int, hidden: int) -> Iterator[Wanted]:
    values = compression.series * width
    yield Wanted(f"{key}_kv", values, hidden)
    yield Wanted(f"{key}_gate", values, hidden)
    yield vector(f"{key}_bias", compression.rate * values)
    yield vector(f"{key}_norm", width)
