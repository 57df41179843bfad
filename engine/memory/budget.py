"""How much context memory a model gets: a pure function of what the model needs, the user asked and the machine has."""

from __future__ import annotations

from dataclasses import dataclass

from engine.base.errors import DoesNotFitError, NoRoomError, UsageError
from engine.base.units import KvBudget, format_size
from engine.memory.pages import PAGE_TOKENS, pages_for

# What a model gets when nobody says anything: enough for long chats, little enough to share the machine.
DEFAULT_CONTEXT = 32 * 1024
DEFAULT_SHARE = 0.25  # of the memory that is free


@dataclass(frozen=True)
class ContextPlan:
    """Context memory as it will be laid out. Sizes in bytes, the others in tokens."""

    context: int  # the longest conversation
    kv_tokens: int  # what all conversations together may keep; a multiple of PAGE_TOKENS
    bytes_per_token: int

    @property
    def pages(self) -> int:
        return self.kv_tokens // PAGE_TOKENS

    @property
    def kv_bytes(self) -> int:
        return self.kv_tokens * self.bytes_per_token


def plan_context(
    *, bytes_per_token: int, model_context: int, available: int, context: int | None = None, kv: KvBudget | None = None
) -> ContextPlan:
    """Decide context and context memory.

    `model_context` is what the model was trained for, `available` the bytes that are free, `context` and `kv` what the
    user asked for (None: decide for me). Raises `DoesNotFitError` that names the number, the excess and the flag; it is
    a `NoRoomError` if only the free memory is in the way.
    """
    assert bytes_per_token > 0
    check_asked_context(context, model_context)
    if kv is not None:
        kv_tokens = whole_pages(kv, bytes_per_token)
    elif context is not None:
        kv_tokens = pages_for(context) * PAGE_TOKENS
    else:
        room = tokens_within(int(available * DEFAULT_SHARE), bytes_per_token)
        wanted = min(pages_for(model_context) * PAGE_TOKENS, DEFAULT_CONTEXT)
        kv_tokens = max(PAGE_TOKENS, min(wanted, room))
    if context is None:
        context = min(model_context, kv_tokens)
    check_context(context, kv_tokens, bytes_per_token)
    plan = ContextPlan(context, kv_tokens, bytes_per_token)
    if plan.kv_bytes > available:
        most = tokens_within(available, bytes_per_token)
        raise NoRoomError(
            f"Context memory for {kv_tokens} tokens takes {format_size(plan.kv_bytes)}, "
            f"{format_size(plan.kv_bytes - available)} more than the {format_size(available)} that are free.",
            f"Give --kv {most} or less." if most else "Close other programs first.",
        )
    return plan


def plan_resize(
    current: ContextPlan, kv: KvBudget, *, context_limit: int, context_border: int | None, available: int
) -> ContextPlan:
    """The plan after a live change of the budget.

    The context is what the new budget can hold, at most `context_limit`: the context the user asked for, else the
    model's. UsageError if it `crosses` the border. `available` counts free bytes besides the current cache.
    """
    kv_tokens = whole_pages(kv, current.bytes_per_token)
    plan = ContextPlan(min(context_limit, kv_tokens), kv_tokens, current.bytes_per_token)
    if crosses(context_border, current.context, plan.context):
        raise UsageError(
            f"--kv {kv_tokens} takes the context from {current.context} to {plan.context} tokens; beyond "
            f"{context_border} this model counts positions in another way, and what it has read would be wrong.",
            f"Stop the model and load it with --kv {kv_tokens}.",
        )
    extra = plan.kv_bytes - current.kv_bytes
    if extra > available:
        most = tokens_within(current.kv_bytes + available, current.bytes_per_token)
        raise NoRoomError(
            f"Growing context memory from {current.kv_tokens} to {kv_tokens} tokens takes {format_size(extra)}, "
            f"{format_size(extra - available)} more than the {format_size(available)} that are free.",
            f"Give --kv {most} or less.",
        )
    return plan


def crosses(border: int | None, one: int, other: int) -> bool:
    """Whether of two contexts one is longer than `border` and the other is not."""
    return border is not None and (one > border) != (other > border)


def check_asked_context(context: int | None, model_context: int) -> None:
    """Raise UsageError or DoesNotFitError for a context that no memory makes possible."""
    if context is None:
        return
    if context < 1:
        raise UsageError(f"--context {context} is not a length.", "Give at least one token.")
    if context > model_context:
        raise DoesNotFitError(
            f"--context {context} is {context - model_context} tokens more than the {model_context} this model knows.",
            f"Give --context {model_context} or less.",
        )


def check_context(context: int, kv_tokens: int, bytes_per_token: int) -> None:
    """Raise DoesNotFitError, with both remedies, if a budget of `kv_tokens` cannot hold a context."""
    if context > kv_tokens:
        raise DoesNotFitError(
            f"--context {context} needs {context - kv_tokens} tokens more than --kv leaves ({kv_tokens} tokens, "
            f"{format_size(kv_tokens * bytes_per_token)}).",
            f"Give --kv {pages_for(context) * PAGE_TOKENS} or --context {kv_tokens}.",
        )


def whole_pages(kv: KvBudget, bytes_per_token: int) -> int:
    """Tokens of a budget: token counts are rounded up to whole pages, bytes down.

    UsageError for a share: on the CPU nothing else has a part of this memory.
    """
    if kv.share:
        raise UsageError(
            f"--kv {kv} is a share of what context memory and cached experts have together; nothing is cached here.",
            "Give tokens or bytes: --kv 32k",
        )
    if kv.tokens:
        return pages_for(kv.tokens) * PAGE_TOKENS
    tokens = tokens_within(kv.bytes, bytes_per_token)
    if tokens == 0:
        page = PAGE_TOKENS * bytes_per_token
        raise DoesNotFitError(
            f"--kv {kv.bytes}B is {page - kv.bytes} bytes short of one page of context memory ({format_size(page)}).",
            f"Give --kv {PAGE_TOKENS} (tokens) or more.",
        )
    return tokens


def tokens_within(size: int, bytes_per_token: int) -> int:
    """Tokens of the whole pages that fit into `size` bytes."""
    return size // bytes_per_token // PAGE_TOKENS * PAGE_TOKENS
