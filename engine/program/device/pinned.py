"""How much pinned memory of the host an executor takes beside the experts."""

from __future__ import annotations

from engine import _native
from engine.experts.branch_stamps import stamp_bytes
from engine.program.device.mixer_data import MixerLayout
from engine.program.device.runner import CHUNK_ROWS, most_tokens
from engine.program.device.step_data import step_layout
from engine.program.ir import Program

_PARTS, _ALIGNMENT = 4, 4096  # each begins on a page of its own


def pinned_bytes(program: Program, max_tokens: int) -> int:
    """Bytes for a step's data, logits, the mailbox of the CPU's share, and the stamps of fills.

    Whoever pins experts leaves so much, or the executor finds nothing left where there is a limit.
    """
    tokens = most_tokens(max_tokens)
    ops = [op for op in program.ops if op.kind == "experts"]
    top_k = max((program.buffers[op.reads[1]].width for op in ops), default=0)
    pairs = [len(table.inv_freq) for table in program.ropes]
    mixers = 4 * MixerLayout(tokens).size
    size = step_layout(tokens, pairs, CHUNK_ROWS, (len(ops), top_k), mixers).size + 4 * CHUNK_ROWS * program.vocab_size
    if ops:
        hidden = program.buffers[ops[0].reads[0]].width
        size += _native.mailbox_layout(tokens, top_k, hidden)["bytes"] + stamp_bytes(len(ops))
    return size + _PARTS * _ALIGNMENT
