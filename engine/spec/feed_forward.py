"""Feed-forward parts of layers: dense ones, and routed experts with what stands beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from engine.spec.check import require, require_positive

ACTIVATIONS = ("silu", "clamped_silu", "limited_silu", "capped_silu", "relu2", "gelu_tanh", "gelu")
LIMITED = ("clamped_silu", "limited_silu", "capped_silu")  # activations that have a limit
MOST_EXPERTS = 4096
SCORINGS = ("softmax", "sigmoid", "softmax_topk", "sigmoid_topk", "sqrt_softplus", "sparse_mixer")


@dataclass(frozen=True)
class Activation:
    """How gate and up become one: `silu(gate) * up`, or its clamped form, which uses `alpha` and `limit`.

    `limited_silu` is silu of `min(gate, limit)`, times up between -limit and limit (DeepSeek-V4); `capped_silu` is
    `min(silu(gate), limit)` times the same (Step-3.5). `gelu` and its approximation `gelu_tanh` stand in the place of
    silu. With `relu2` there is no gate: `max(up, 0)^2`.
    """

    name: str = "silu"
    alpha: float = 1.0
    limit: float = 0.0

    def __post_init__(self) -> None:
        require(self.name in ACTIVATIONS, f"the activation must be one of {', '.join(ACTIVATIONS)}, not {self.name}")
        require(self.name not in LIMITED or self.limit > 0, f"{self.name} needs a positive limit, not {self.limit}")

    @property
    def is_gated(self) -> bool:
        """Whether there is a gate beside up."""
        return self.name != "relu2"


@dataclass(frozen=True)
class Dense:
    """A feed-forward part that every token passes."""

    kind: ClassVar[str] = "dense"
    width: int
    activation: Activation = Activation()
    bias: bool = False

    def __post_init__(self) -> None:
        require_positive(width=self.width)


@dataclass(frozen=True)
class Router:
    """How a token chooses its experts; docs/design.md has the arithmetic under `route`."""

    top_k: int
    scoring: str = "softmax"
    groups: int = 1
    top_groups: int = 1
    group_top: int = 1  # a group is as good as the sum of this many of its best experts
    normalize: bool = False
    scale: float = 1.0
    linear_bias: bool = False  # added to the logits
    normed: bool = False  # it reads a norm of the stream, divided by the root of its width
    expert_scale: bool = False  # the weight of an expert is multiplied by a learned one, at last
    choice_bias: bool = False  # added to the scores for the choice alone
    jitter: float = 0.0  # of sparse_mixer: how far, as a share, a score may lie below the best and still count
    by_token: bool = False  # a table has the experts of every token id; scores weigh them and choose nothing

    def __post_init__(self) -> None:
        require_positive(
            top_k=self.top_k, groups=self.groups, top_groups=self.top_groups, group_top=self.group_top, scale=self.scale
        )
        require(self.scoring in SCORINGS, f"scoring must be one of {', '.join(SCORINGS)}, not {self.scoring}")
        require(self.top_groups <= self.groups, f"{self.top_groups} of {self.groups} expert groups cannot be chosen")
        require(self.jitter >= 0, f"the jitter of a router must not be negative, not {self.jitter}")
        choosing = self.groups > 1 or self.choice_bias
        require(not (self.by_token and choosing), "experts that a table names cannot compete for the choice")


@dataclass(frozen=True)
class Experts:
    """The routed experts of one layer, all of one shape."""

    count: int
    width: int
    activation: Activation = Activation()
    bias: bool = False

    def __post_init__(self) -> None:
        require_positive(count=self.count, width=self.width)
        require(self.count <= MOST_EXPERTS, f"{self.count} experts a layer are more than {MOST_EXPERTS}")


@dataclass(frozen=True)
class Shared:
    """The shared experts of one layer, run for every token as one of their joint width.

    Between their matrices stands what stands between those of the routed experts, or an `activation` of their own.
    """

    width: int
    gated: bool = False  # their output is multiplied by the sigmoid of one learned projection
    scale: float = 1.0  # of what they add to the routed experts' output
    activation: Activation | None = None

    def __post_init__(self) -> None:
        require_positive(width=self.width)


@dataclass(frozen=True)
class Moe:
    """A router, its experts, and perhaps shared ones beside them.

    With `latent` the routed experts see so many values, which one projection makes of the hidden state and another
    turns back into it; 0: they see the hidden state. With `scaled_input` the router's weight multiplies what the one
    chosen expert sees and not what it says. With `bias` one vector is added to what the routed experts make together.
    `apart`: routed experts read a norm of the stream of their own, and what they and the shared experts make is normed
    for each alone before it is added. `normed`: what all of them make together is normed before it is added.

    The router may choose one of `zero` further experts, which cost nothing: they return what they see. With `deferred`
    the routed experts' output is added to the residual stream behind the next layer, where it is ready by then; what is
    shared is added at once (a shortcut, as of LongCat-Flash, arXiv 2509.01322).
    """

    kind: ClassVar[str] = "moe"
    router: Router
    experts: Experts
    shared: Shared | None = None
    latent: int = 0
    scaled_input: bool = False
    apart: bool = False
    zero: int = 0
    deferred: bool = False
    bias: bool = False
    normed: bool = False

    def __post_init__(self) -> None:
        router, count = self.router, self.choices
        require(count <= MOST_EXPERTS, f"a router cannot choose among {count} experts")
        require(self.latent >= 0, f"experts cannot see {self.latent} values")
        require(not self.scaled_input or router.top_k == 1, "only one expert a token can see a scaled input")
        require(self.zero >= 0, f"there cannot be {self.zero} experts without computation")
        require(
            not self.deferred or self.shared is not None, "a layer that defers its experts adds shared ones at once"
        )
        require(not (self.deferred and self.normed), "experts that add to the stream twice have no norm in common")
        require(count % router.groups == 0, f"{count} experts cannot form {router.groups} equal groups")
        reach = count // router.groups * router.top_groups
        require(router.top_k <= reach, f"a token cannot choose {router.top_k} of {reach} experts")
        require(
            router.group_top <= count // router.groups,
            f"a group of {count // router.groups} experts has no {router.group_top} best ones",
        )

    @property
    def choices(self) -> int:
        """Experts that the router chooses among."""
        return self.experts.count + self.zero

    @property
    def shared_activation(self) -> Activation:
        """What stands between the matrices of shared experts."""
        own = None if self.shared is None else self.shared.activation
        return own or self.experts.activation
