"""What is to be made of a checkpoint, and all that is known of that before a byte of its weights is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from engine.files.conversion.plan import Plan, plan_conversion
from engine.files.sources.checkpoint import Checkpoint
from engine.files.sources.tokenizers import require_tokenizer
from engine.files.sources.upcycle import Upcycle, upcycled
from engine.spec.schema import Spec


@dataclass(frozen=True)
class Recipe:
    """What a conversion does beside packing what is there.

    `upcycle` makes a dense model sparse. `expert_codec` (one of ENCODED) puts routed experts into that codec, at a cost
    that is measured. `sampling` is what generation_config.json says where the source has none.
    """

    upcycle: Upcycle | None = None
    expert_codec: str | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """As JSON, for the provenance of a model and for its journal; what is not wanted is absent."""
        settings: dict[str, Any] = {"upcycle": asdict(self.upcycle)} if self.upcycle else {}
        if self.expert_codec:
            settings["expert_codec"] = self.expert_codec
        if self.sampling:
            settings["sampling"] = dict(self.sampling)
        return settings


AS_IT_IS = Recipe()


@dataclass(frozen=True)
class Job:
    """A planned conversion. `checkpoint` is the source as `plan` reads it, and is closed by whoever opened it."""

    checkpoint: Checkpoint
    recipe: Recipe
    spec: Spec
    plan: Plan


def plan_job(checkpoint: Checkpoint, recipe: Recipe = AS_IT_IS, without_tokenizer: bool = False) -> Job:
    """Plans what `recipe` makes of a checkpoint, from its headers.

    Errors: those of `upcycled` and `plan_conversion`; those of `require_tokenizer`, unless the model is wanted even
    `without_tokenizer`.
    """
    if not without_tokenizer:
        require_tokenizer(checkpoint)
    if recipe.upcycle:
        checkpoint = upcycled(checkpoint, recipe.upcycle)
    spec, plan = plan_conversion(checkpoint, recipe.expert_codec)
    return Job(checkpoint, recipe, spec, plan)
