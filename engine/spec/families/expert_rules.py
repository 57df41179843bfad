"""How config.json describes routed experts and shared ones. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.spec.families.attention_rules import NO_LAYERS
from engine.spec.families.config import Key


@dataclass(frozen=True)
class GroupRule:
    """Groups of experts compete first. `when` names a field and the value that switches it on; None: always on."""

    groups: Key
    top_groups: Key
    group_top: int
    when: tuple[str, str] | None = None


@dataclass(frozen=True)
class SharedRule:
    """Shared experts: their joint width is `width` times `count`.

    `combination` is "sum", or "average" where the sum with the routed experts' output is halved.
    """

    width: Key
    count: Key | int = 1
    gated: bool = False
    combination: Key | str = "sum"


@dataclass(frozen=True)
class ActivationRule:
    """The clamped gate of gpt-oss, in dense parts as in experts; a family without one uses silu."""

    alpha: Key
    limit: Key


@dataclass(frozen=True)
class MoeRule:
    """Routed experts.

    A layer has them if a list `types` calls it sparse, or a list `layers` names its number. Without such a list it must
    not be among the first `first_dense` nor come after `last` (-1: the last of all), it must be the last of every
    `step`, or the one after `offset` others, and it must not be listed in `dense_layers`. A model of fewer than
    `fewest` has none at all.
    Where config.json names the `scoring`, `scorings` are the names that are known, and ours.

    With a `limit` silu sees nothing beyond it. What silu makes in routed experts is capped by `cap`, what it makes in
    shared ones and in layers without experts by `shared_cap` (0: not at all). In the first `by_token` layers, or in
    those that a list `by_token_types` calls so, a table says which experts a token goes to.
    """

    count: Key
    top_k: Key
    width: Key
    scoring: Key | str = "softmax"
    scorings: Mapping[str, str] = field(default_factory=dict)
    normalize: Key | bool = False
    jitter: Key | float = 0.0
    scale: Key | float = 1.0
    groups: GroupRule | None = None
    linear_bias: bool = False
    choice_bias: Key | bool = False
    expert_bias: bool = False
    shared: SharedRule | None = None
    latent: Key | int = 0
    scaled_input: bool = False
    apart: bool = False
    bias: bool = False
    normed: bool = False  # what the router reads
    output_normed: bool = False
    expert_scale: bool = False
    zero: Key | int = 0  # further experts, which return what they see
    clamped: ActivationRule | None = None
    first_dense: Key | int = 0
    last: Key | int = -1
    step: Key | int = 1
    offset: Key | None = None
    fewest: int = 1
    dense_layers: Key = NO_LAYERS
    types: Key = NO_LAYERS
    layers: Key = NO_LAYERS
    enabled: Key | bool = True
    limit: Key | float = 0.0
    cap: Key | float = 0.0
    shared_cap: Key | float = 0.0
    by_token: Key | int = 0
    by_token_types: Key = NO_LAYERS
