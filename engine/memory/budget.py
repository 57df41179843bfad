"""How much context memory a model gets: a pure function of what the model needs, the user asked and the machine has.

`--kv` is in tokens, or in bytes of keys and values that are kept whole. Beside those, layers that reach back only so
far get window pages, and recurrent layers get states; whatever is planned and told counts all three.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.base.errors import DoesNotFitError, NoRoomError, UsageError
from engine.base.units import KvBudget, format_size
from engine.memory.blocks import ContextRoom
from engine.memory.lookup import ContextTraits
from engine.memory.pages import PAGE_TOKENS, pages_for
from engine.memory.windows import window_pages

# What a model gets when nobody says anything: enough for long chats, little enough to share the machine.
DEFAULT_CONTEXT = 32 * 1024
DEFAULT_SHARE = 0.25  # of the memory that is free

# Window pages: what so many live requests see while they read so many tokens a step, and one for every so many pages.
WINDOW_REQUESTS = 4
WINDOW_STEP = 512
PAGES_A_WINDOW = 4

# Where pages take no memory, since all layers have a reach or a state, so many tokens are known at most: a page is
# still something to find and to count.
MOST_WITHOUT_BYTES = 1 << 20

# Recurrent states: two for a live request, the others are checkpoints.
STATES = 48
LEAST_STATES = 4
STATES_SHARE = 0.125  # of the memory that is free


@dataclass(frozen=True)
class ContextNeeds:
    """What a model keeps of a conversation, in bytes: of a token in layers that keep everything, of a token in those
    with a `reach`, and of the recurrent states of a sequence."""

    bytes_per_token: int
    window_bytes_per_token: int = 0
    reach: int = 0
    state_bytes: int = 0

    @property
    def traits(self) -> ContextTraits:
        return ContextTraits(self.reach, stateful=self.state_bytes > 0, paged=self.bytes_per_token > 0)


@dataclass(frozen=True)
class ContextPlan:
    """Context memory as it will be laid out."""

    context: int  # tokens of the longest conversation
    kv_tokens: int  # what all conversations together may keep; a multiple of PAGE_TOKENS
    needs: ContextNeeds
    states: int = 0

    @property
    def bytes_per_token(self) -> int:
        """Bytes of a token in layers that keep everything."""
        return self.needs.bytes_per_token

    @property
    def pages(self) -> int:
        return self.kv_tokens // PAGE_TOKENS

    @property
    def room(self) -> ContextRoom:
        """Blocks of every kind."""
        return ContextRoom(self.pages, windows_for(self.pages, self.needs.reach), self.states)

    @property
    def kv_bytes(self) -> int:
        """Bytes of all blocks."""
        return context_bytes(self.needs, self.room)


def windows_for(pages: int, reach: int) -> int:
    """Window pages beside so many pages: what live requests see, and a share for prefixes that are kept."""
    live = WINDOW_REQUESTS * window_pages(pages * PAGE_TOKENS, reach, WINDOW_STEP)
    return min(pages, live + pages // PAGES_A_WINDOW) if reach else 0


def states_for(state_bytes: int, available: int) -> int:
    """States of a model, with `available` bytes free; 0 for one that has none."""
    if not state_bytes:
        return 0
    return max(LEAST_STATES, min(STATES, int(available * STATES_SHARE) // state_bytes))


def context_bytes(needs: ContextNeeds, room: ContextRoom) -> int:
    """Bytes of a room's blocks."""
    page, window = PAGE_TOKENS * needs.bytes_per_token, PAGE_TOKENS * needs.window_bytes_per_token
    return room.pages * page + room.windows * window + room.states * needs.state_bytes


def plan_context(
    needs: ContextNeeds, *, model_context: int, available: int, context: int | None = None, kv: KvBudget | None = None
) -> ContextPlan:
    """Decide context and context memory.

    `model_context` is what the model was trained for, `available` the bytes that are free, `context` and `kv` what the
    user asked for (None: decide for me). Raises `DoesNotFitError` that names the number, the excess and the flag; it is
    a `NoRoomError` if only the free memory is in the way.
    """
    check_asked_context(context, model_context)
    states = states_for(needs.state_bytes, available)
    empty = ContextPlan(0, 0, needs, states)
    if kv is not None:
        kv_tokens = whole_pages(kv, needs.bytes_per_token)
    elif context is not None:
        kv_tokens = pages_for(context) * PAGE_TOKENS
    else:
        wanted = min(pages_for(model_context) * PAGE_TOKENS, DEFAULT_CONTEXT)
        kv_tokens = max(PAGE_TOKENS, most_tokens(empty, int(available * DEFAULT_SHARE) + empty.kv_bytes, wanted))
    if context is None:
        context = min(model_context, kv_tokens)
    check_context(context, kv_tokens, needs.bytes_per_token)
    plan = replace(empty, context=context, kv_tokens=kv_tokens)
    if plan.kv_bytes > available:
        most = most_tokens(empty, available, kv_tokens)
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
    plan = replace(current, context=min(context_limit, kv_tokens), kv_tokens=kv_tokens)
    if crosses(context_border, current.context, plan.context):
        raise UsageError(
            f"--kv {kv_tokens} takes the context from {current.context} to {plan.context} tokens; beyond "
            f"{context_border} this model counts positions in another way, and what it has read would be wrong.",
            f"Stop the model and load it with --kv {kv_tokens}.",
        )
    extra = plan.kv_bytes - current.kv_bytes
    if extra > available:
        most = most_tokens(current, current.kv_bytes + available, kv_tokens)
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
    """Tokens of a budget: token counts are rounded up to whole pages, bytes down. Where a token takes no bytes it is at
    most `MOST_WITHOUT_BYTES`.

    UsageError for a share: on the CPU nothing else has a part of this memory.
    """
    if kv.share:
        raise UsageError(
            f"--kv {kv} is a share of what context memory and cached experts have together; nothing is cached here.",
            "Give tokens or bytes: --kv 32k",
        )
    if not bytes_per_token:
        return min(pages_for(kv.tokens or kv.bytes) * PAGE_TOKENS, MOST_WITHOUT_BYTES)
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


def most_tokens(plan: ContextPlan, size: int, limit: int) -> int:
    """The most tokens, whole pages and `limit` at most, whose context memory beside the states of `plan` takes `size`
    bytes or less."""
    low, high = 0, limit // PAGE_TOKENS + 1  # pages; `high` is more than may be
    while high - low > 1:
        middle = (low + high) // 2
        if replace(plan, kv_tokens=middle * PAGE_TOKENS).kv_bytes <= size:
            low = middle
        else:
            high = middle
    return low * PAGE_TOKENS


def tokens_within(size: int, bytes_per_token: int) -> int:
    """Tokens of the whole pages that fit into `size` bytes."""
    return size // max(1, bytes_per_token) // PAGE_TOKENS * PAGE_TOKENS
