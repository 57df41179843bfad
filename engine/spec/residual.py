"""The residual stream: how a layer's parts read it and add to it, and the norms on the way."""

from __future__ import annotations

from dataclasses import dataclass

from engine.spec.check import require

NORMS = ("rms", "layer")
FORMS = ("pre", "post", "sandwich", "parallel", "normed")


@dataclass(frozen=True)
class Norm:
    """The norms of the residual stream. Those inside a mixer are always of the root mean square.

    `rms` divides by the root mean square, `layer` takes the mean away first and divides by the deviation.
    """

    kind: str = "rms"
    bias: bool = False  # added at the end; of layer norms alone

    def __post_init__(self) -> None:
        require(self.kind in NORMS, f"the norm must be one of {', '.join(NORMS)}, not {self.kind}")
        require(self.kind == "layer" or not self.bias, "only layer norms have biases")


@dataclass(frozen=True)
class Residual:
    """What a layer does with the stream x and its parts f.

    `pre`: `x += f(norm(x))`, one part after the other. `post`: `x += norm(f(x))`. `sandwich`: `x += norm(f(norm(x)))`.
    `parallel`: both parts read one norm of x, and both are added. `normed`: `x = norm(x)`, then `x = keep * x + add *
    f(x)`, with numbers for each of the two parts (MiniMax-01, arXiv 2501.08313).
    """

    form: str = "pre"
    scaled: bool = False  # after the layer the stream is multiplied by a learned number
    attn_keep: float = 1.0
    attn_add: float = 1.0
    ffn_keep: float = 1.0
    ffn_add: float = 1.0

    def __post_init__(self) -> None:
        require(self.form in FORMS, f"the residual form must be one of {', '.join(FORMS)}, not {self.form}")
        scales = (self.attn_keep, self.attn_add, self.ffn_keep, self.ffn_add)
        require(self.is_normed or set(scales) == {1.0}, "only a stream that is normed is scaled")

    @property
    def norms_before(self) -> bool:
        """Whether parts read a norm of the stream."""
        return self.form != "post"

    @property
    def norms_after(self) -> bool:
        """Whether what parts make is normed before it is added."""
        return self.form in ("post", "sandwich")

    @property
    def is_parallel(self) -> bool:
        """Whether both parts read the same norm, that of the mixer."""
        return self.form == "parallel"

    @property
    def is_normed(self) -> bool:
        """Whether what a part makes is added to the norm that it read."""
        return self.form == "normed"


PRE_NORM, RMS_NORM = Residual(), Norm()
