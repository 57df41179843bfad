"""Mixers that keep a state of a fixed size instead of keys and values of every token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from engine.spec.check import require, require_positive

GATE_ACTIVATIONS = ("silu", "sigmoid")


@dataclass(frozen=True)
class DeltaNet:
    """Gated delta rule behind a short convolution (Yang et al. 2024, arXiv 2412.06464).

    With `channelwise` the state decays by a factor of its own in every key channel (Kimi delta attention, arXiv
    2510.26692), else by one factor a head. With `decay_rank` that factor comes through so many values, and is one a
    channel; with `gate_rank` the output's gate does; 0: straight from the hidden state.

    The logarithm of a factor is `-exp(a_log) * softplus(a + dt_bias)`, or with `decay_bound`, which is below zero,
    `decay_bound * sigmoid(exp(a_log) * (a + dt_bias))`. Of a value up to `beta_scale` is learned; with 2 the state
    can turn (Grazzi et al. 2024, arXiv 2411.12537).
    """

    kind: ClassVar[str] = "delta_net"
    key_heads: int  # of queries and keys; each serves heads / key_heads value heads
    heads: int
    k_dim: int
    v_dim: int
    kernel: int  # tokens that the convolution sees, its own among them
    scale: float  # of the output
    norm_eps: float
    gate_activation: str = "silu"
    decay_rank: int = 0
    gate_rank: int = 0
    channelwise: bool = False
    decay_bound: float = 0.0
    beta_scale: float = 1.0

    def __post_init__(self) -> None:
        require_positive(
            key_heads=self.key_heads,
            heads=self.heads,
            k_dim=self.k_dim,
            v_dim=self.v_dim,
            scale=self.scale,
            norm_eps=self.norm_eps,
            beta_scale=self.beta_scale,
        )
        even = self.heads % self.key_heads == 0
        require(even, f"{self.heads} value heads cannot share {self.key_heads} key heads evenly")
        _require_kernel(self.kernel)
        known = self.gate_activation in GATE_ACTIVATIONS
        require(known, f"the gate must be one of {', '.join(GATE_ACTIVATIONS)}, not {self.gate_activation}")
        require(min(self.decay_rank, self.gate_rank) >= 0, "the rank of a projection must not be negative")
        require(self.decay_bound <= 0, f"the logarithm of a decay cannot be bounded by {self.decay_bound}")
        whole = not self.decays_by_channel or self.heads == self.key_heads
        require(whole, "a decay of every key channel needs as many key heads as value heads")

    @property
    def decays_by_channel(self) -> bool:
        """Whether every key channel has a decay of its own."""
        return self.channelwise or self.decay_rank > 0

    @property
    def key_width(self) -> int:
        """Values of all keys, or of all queries, of a token."""
        return self.key_heads * self.k_dim

    @property
    def value_width(self) -> int:
        """Values of all value heads of a token."""
        return self.heads * self.v_dim

    @property
    def decay_width(self) -> int:
        """Decays of a token: one a head, or one a key channel of every head."""
        return self.heads * self.k_dim if self.decays_by_channel else self.heads


@dataclass(frozen=True)
class LinearAttention:
    """Attention without a softmax (Lightning Attention, Qin et al. 2024, arXiv 2405.17381).

    Queries, keys and values pass silu. A head's state S becomes `d S + k v^T`, its output is `S^T q`; all heads'
    outputs are normed together and gated by the sigmoid of a projection. Of n heads, head h keeps
    `d = exp(-slope * 2^(-8 (h + 1) / n))`.
    """

    kind: ClassVar[str] = "linear_attention"
    heads: int
    head_dim: int
    slope: float  # of the layer
    norm_eps: float

    def __post_init__(self) -> None:
        require_positive(heads=self.heads, head_dim=self.head_dim, slope=self.slope, norm_eps=self.norm_eps)

    @property
    def width(self) -> int:
        """Values of all heads of a token."""
        return self.heads * self.head_dim


@dataclass(frozen=True)
class Mamba:
    """Selective state space (Gu and Dao 2023, arXiv 2312.00752): every channel has a state and rates of its own.

    The time step comes through `step_rank` values, which are normed, as the state's input and output are (Jamba).
    """

    kind: ClassVar[str] = "mamba"
    channels: int
    state_dim: int
    step_rank: int
    kernel: int  # tokens that the convolution sees, its own among them
    norm_eps: float
    bias: bool = False  # of the projections from and to the hidden state
    conv_bias: bool = True

    def __post_init__(self) -> None:
        require_positive(
            channels=self.channels, state_dim=self.state_dim, step_rank=self.step_rank, norm_eps=self.norm_eps
        )
        _require_kernel(self.kernel)


@dataclass(frozen=True)
class Mamba2:
    """State space with one rate and one time step a head (Dao and Gu 2024, arXiv 2405.21060).

    The state's input and output are shared by the heads of a group; the output's norm is over a group. Time steps lie
    between `step_min` and `step_max` (0: no upper bound).
    """

    kind: ClassVar[str] = "mamba2"
    heads: int
    head_dim: int
    groups: int
    state_dim: int
    kernel: int  # tokens that the convolution sees, its own among them
    norm_eps: float
    step_min: float = 0.0
    step_max: float = 0.0
    bias: bool = False  # of the projections from and to the hidden state
    conv_bias: bool = True

    def __post_init__(self) -> None:
        require_positive(
            heads=self.heads,
            head_dim=self.head_dim,
            groups=self.groups,
            state_dim=self.state_dim,
            norm_eps=self.norm_eps,
        )
        require(self.heads % self.groups == 0, f"{self.heads} heads cannot share {self.groups} groups evenly")
        _require_kernel(self.kernel)
        bounded = self.step_min >= 0 and (self.step_max == 0 or self.step_max >= self.step_min)
        require(bounded, f"time steps cannot lie between {self.step_min} and {self.step_max}")

    @property
    def width(self) -> int:
        """Values of all heads of a token."""
        return self.heads * self.head_dim

    @property
    def conv_width(self) -> int:
        """Channels that the convolution passes over: of all heads, and the input and output of each group's state."""
        return self.width + 2 * self.groups * self.state_dim


@dataclass(frozen=True)
class ShortConv:
    """A convolution between two gates (LFM2): out = C * conv(B * x), where B, C and x are as wide as the model."""

    kind: ClassVar[str] = "short_conv"
    kernel: int  # tokens that the convolution sees, its own among them
    bias: bool = False  # of the projections and of the convolution

    def __post_init__(self) -> None:
        _require_kernel(self.kernel)


def _require_kernel(kernel: int) -> None:
    require(kernel > 1, f"a convolution must see more than {kernel} tokens")
