"""Why no more of a prompt was reused, in words."""

from __future__ import annotations

from typing import assert_never

from engine.memory.lookup import Reuse
from engine.memory.pages import PAGE_TOKENS


def sentence(reuse: Reuse, prompt_tokens: int) -> str:
    """What `reuse` means for a prompt of so many tokens, to stand after `reused N of M tokens: `."""
    known, position = reuse.known, reuse.position
    match reuse.why:
        case "last" if position == 0:
            return f"pages of {PAGE_TOKENS} are reused whole, and it has none before its last token"
        case "last":
            return f"only its last {prompt_tokens - position} are computed, because the answer begins from there"
        case "new":
            return "nothing like it was computed before"
        case "differs" if position == known:
            return f"what follows its first {known} was never computed before"
        case "differs":
            return (
                f"what follows its first {known} was never computed before, and pages of {PAGE_TOKENS} are reused whole"
            )
        case "state":
            return f"it was computed before up to {known}, but no recurrent state after {position} is kept"
        case "window":
            return f"it was computed before up to {known}, but what a window shows after {position} is not kept"
        case "forgotten":
            return f"what was computed after {known} tokens was forgotten to make room"
        case why:
            assert_never(why)
