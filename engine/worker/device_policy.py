"""How long the steps of a prompt may be on a device: the longer, the fewer times all experts cross the link."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from engine.experts.prefill import PrefillPolicy
from engine.experts.slot_products import MOST_PAIRS
from engine.files.conversion.plan import BankPlan
from engine.files.ftw.manifest import BankInfo
from engine.memory.pages import PAGE_TOKENS
from engine.program.device.runner import BUCKETS
from engine.program.ir import Program
from engine.worker.device_needs import buffer_bytes, top_k_of
from engine.worker.scheduler import POLICY, Policy

MOST_TOKENS = 8192
_SHARE = 16  # of the device's memory, the part that rows of a step may take


def prompt_tokens(program: Program, banks: Sequence[BankInfo | BankPlan], total: int) -> int:
    """Tokens of the longest step on a device of `total` bytes: whole pages, as many as rows may have memory.

    A launch has a row a pair of token and expert, and at most `MOST_PAIRS`. A model without experts gains nothing.
    """
    usual = POLICY.max_step_tokens
    top_k = top_k_of(program)
    if not top_k:
        return usual
    per_token = (buffer_bytes(program, banks, MOST_TOKENS) - buffer_bytes(program, banks, 0)) // MOST_TOKENS
    most = min(MOST_TOKENS, MOST_PAIRS // top_k, total // _SHARE // max(1, per_token))
    return max(usual, most // PAGE_TOKENS * PAGE_TOKENS)


def on_demand_tokens(experts: int, top_k: int) -> int:
    """Tokens of the longest step, in whole pages, that streams no layer of so many experts whatever the split is."""
    pages = range(BUCKETS[-1] // PAGE_TOKENS, POLICY.streaming_tokens // PAGE_TOKENS + 1)
    fits = [page for page in pages if not PrefillPolicy().streams(page * PAGE_TOKENS, experts, top_k, 1.0)]
    return max(fits, default=pages[0]) * PAGE_TOKENS


def device_policy(program: Program, banks: Sequence[BankInfo | BankPlan], total: int, is_virtual: bool) -> Policy:
    """Steps as long as `prompt_tokens` while nobody else waits, whatever they take: most is the pool's transfer.

    Beside streams they are `on_demand_tokens` at most, since a transfer of the pool would hold up every stream.
    A simulated device computes on the processor, where so long a step could not be cancelled for minutes.
    """
    top_k = top_k_of(program)
    if is_virtual or not top_k:
        return POLICY
    beside = on_demand_tokens(max(bank.experts_per_layer for bank in banks), top_k)
    most = prompt_tokens(program, banks, total)
    return replace(POLICY, max_step_tokens=most, alone_seconds=math.inf, streaming_tokens=beside)
