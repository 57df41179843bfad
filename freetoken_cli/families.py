"""What `freetoken doctor` says about model families."""

from __future__ import annotations

from typing import Any

from engine.spec.families import FAMILIES

TESTED = "logits after every layer against transformers, on tiny random checkpoints"


def family_records() -> list[dict[str, Any]]:
    """One entry a family, in a stable order."""
    return [
        {
            "name": family.name,
            "architecture": family.architecture,
            "experts": family.moe is not None,
            "codecs": list(family.tested),
            "tested": TESTED if family.tested else "not yet",
        }
        for family in sorted(FAMILIES.values(), key=lambda family: family.name)
    ]
