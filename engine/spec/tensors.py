"""Every tensor that a spec needs, under our names: dense ones once, an expert's once for all experts of a layer.

Names of ours: `embed`, `head`, `final_norm`, and for layer 3 `layers.3.attn_norm`, `layers.3.attn.q`,
`layers.3.ffn.gate`, `layers.3.router`, `layers.3.shared.up` and so on. A `key` is a name without its layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.spec.recurrent import DeltaNet, Mamba, Mamba2, ShortConv
from engine.spec.schema import Activation, Attention, Dense, LatentAttention, Moe, Router, Shared, Spec


@dataclass(frozen=True)
class Wanted:
    """A matrix [rows, cols], or a vector of `cols` values where `rows` is 0. `heads` equal blocks of rows, if any.

    With `apart` every block of rows is multiplied by an input of its own.
    """

    key: str
    rows: int
    cols: int
    heads: int = 1
    apart: bool = False

    @property
    def is_vector(self) -> bool:
        return self.rows == 0

    @property
    def extent(self) -> int:
        """What it takes up of a tensor that holds several: rows of a matrix, values of a vector."""
        return self.rows or self.cols


def tensor_name(key: str, layer: int = -1) -> str:
    """The name under which a converted model keeps a dense tensor; layer -1 for those outside the layers."""
    return key if layer < 0 else f"layers.{layer}.{key}"


def outer_tensors(spec: Spec) -> tuple[Wanted, ...]:
    """The tensors outside the layers."""
    hidden = spec.hidden_size
    head = () if spec.tied_head else (Wanted("head", spec.vocab_size, hidden),)
    return (Wanted("embed", spec.vocab_size, hidden), _vector("final_norm", hidden), *head)


def layer_tensors(spec: Spec, layer: int) -> tuple[Wanted, ...]:
    """The dense tensors of one decoder layer; its routed experts are not among them."""
    return tuple(_layer_tensors(spec, layer))


def expert_tensors(spec: Spec, moe: Moe) -> tuple[Wanted, ...]:
    """What the record of one expert holds."""
    experts = moe.experts
    hidden, width = moe.latent or spec.hidden_size, experts.width
    gate = (Wanted("gate", width, hidden),) if experts.activation.is_gated else ()
    matrices = (*gate, Wanted("up", width, hidden), Wanted("down", hidden, width))
    if not experts.bias:
        return matrices
    gate_bias = (_vector("gate_bias", width),) if experts.activation.is_gated else ()
    return (*matrices, *gate_bias, _vector("up_bias", width), _vector("down_bias", hidden))


def _vector(key: str, length: int) -> Wanted:
    return Wanted(key, 0, length)


def _layer_tensors(spec: Spec, layer: int) -> Iterator[Wanted]:
    hidden = spec.hidden_size
    mixer, ffn = spec.layers[layer].mixer, spec.layers[layer].ffn
    if mixer is not None:
        yield _vector("attn_norm", hidden)
    match mixer:
        case Attention():
            yield from _attention(mixer, hidden)
        case LatentAttention():
            yield from _latent_attention(mixer, hidden)
        case DeltaNet():
            yield from _delta_net(mixer, hidden)
        case Mamba():
            yield from _mamba(mixer, hidden)
        case Mamba2():
            yield from _mamba2(mixer, hidden)
        case ShortConv():
            yield from _short_conv(mixer, hidden)
    if ffn is not None:
        yield _vector("ffn_norm", hidden)
    match ffn:
        case Dense():
            yield from _feed_forward("ffn", hidden, ffn.width, ffn.activation, ffn.bias)
        case Moe():
            yield from _router(ffn.router, ffn.experts.count, hidden)
            if ffn.latent:
                yield Wanted("latent_in", ffn.latent, hidden)
                yield Wanted("latent_out", hidden, ffn.latent)
            yield from _shared(ffn.shared, hidden, ffn.experts.activation)


def _attention(mixer: Attention, hidden: int) -> Iterator[Wanted]:
    q_width, kv_width = mixer.heads * mixer.head_dim, mixer.kv_heads * mixer.head_dim
    yield Wanted("attn.q", q_width, hidden, mixer.heads)
    yield Wanted("attn.k", kv_width, hidden)
    yield Wanted("attn.v", kv_width, hidden)
    yield Wanted("attn.o", hidden, q_width)
    if mixer.gated:
        yield Wanted("attn.gate", q_width, hidden, mixer.heads)
    biases = (("q", mixer.q_bias, q_width), ("k", mixer.k_bias, kv_width), ("v", mixer.v_bias, kv_width))
    for name, present, width in (*biases, ("o", mixer.o_bias, hidden)):
        if present:
            yield _vector(f"attn.{name}_bias", width)
    if mixer.qk_norm != "none":
        yield _vector("attn.q_norm", mixer.head_dim if mixer.qk_norm == "head" else q_width)
        yield _vector("attn.k_norm", mixer.head_dim if mixer.qk_norm == "head" else kv_width)
    if mixer.sinks:
        yield _vector("attn.sinks", mixer.heads)


def _latent_attention(mixer: LatentAttention, hidden: int) -> Iterator[Wanted]:
    heads, latent = mixer.heads, mixer.kv_lora_rank
    q_width = heads * (mixer.nope_dim + mixer.rope_dim)
    if mixer.q_lora_rank:
        yield Wanted("attn.q_a", mixer.q_lora_rank, hidden)
        yield _vector("attn.q_a_norm", mixer.q_lora_rank)
        yield Wanted("attn.q", q_width, mixer.q_lora_rank)
    else:
        yield Wanted("attn.q", q_width, hidden)
    yield Wanted("attn.kv_a", latent, hidden)
    yield Wanted("attn.k_rope", mixer.rope_dim, hidden)
    yield _vector("attn.kv_a_norm", latent)
    yield Wanted("attn.k_up", heads * latent, mixer.nope_dim, heads, apart=True)  # W_uk of every head, transposed
    yield Wanted("attn.v_up", heads * mixer.v_dim, latent, heads, apart=True)
    yield Wanted("attn.o", hidden, heads * mixer.v_dim)
    if mixer.bias:
        if mixer.q_lora_rank:
            yield _vector("attn.q_a_bias", mixer.q_lora_rank)
        yield _vector("attn.kv_a_bias", latent)
        yield _vector("attn.k_rope_bias", mixer.rope_dim)
        yield _vector("attn.o_bias", hidden)


def _delta_net(mixer: DeltaNet, hidden: int) -> Iterator[Wanted]:
    keys, values, groups = mixer.key_width, mixer.value_width, mixer.key_heads
    yield Wanted("delta.q", keys, hidden, groups)
    yield Wanted("delta.k", keys, hidden, groups)
    yield Wanted("delta.v", values, hidden, groups)
    yield from _through(mixer.gate_rank, "delta.gate", values, hidden, groups)
    yield from _through(mixer.decay_rank, "delta.decay", mixer.decay_width, hidden, groups)
    yield Wanted("delta.beta", mixer.heads, hidden, groups)
    yield _vector("delta.conv", (2 * keys + values) * mixer.kernel)
    yield _vector("delta.a_log", mixer.heads)
    yield _vector("delta.dt_bias", mixer.decay_width)
    yield _vector("delta.norm", mixer.v_dim)
    yield Wanted("delta.o", hidden, values)


def _through(rank: int, key: str, rows: int, hidden: int, heads: int) -> Iterator[Wanted]:
    """A matrix from the hidden state, or two with `rank` values between them."""
    if rank:
        yield Wanted(f"{key}_a", rank, hidden)
    yield Wanted(key, rows, rank or hidden, heads)


def _mamba(mixer: Mamba, hidden: int) -> Iterator[Wanted]:
    channels = mixer.channels
    yield from _projections(hidden, {"mamba.in": channels, "mamba.gate": channels}, mixer.bias)
    yield from _conv("mamba.conv", channels * mixer.kernel, channels if mixer.conv_bias else 0)
    for name, rows in (("step", mixer.step_rank), ("b", mixer.state_dim), ("c", mixer.state_dim)):
        yield Wanted("mamba.step_a" if name == "step" else f"mamba.{name}", rows, channels)
        yield _vector(f"mamba.{name}_norm", rows)
    yield Wanted("mamba.step", channels, mixer.step_rank)
    yield _vector("mamba.dt_bias", channels)
    yield _vector("mamba.a_log", channels * mixer.state_dim)
    yield _vector("mamba.d", channels)
    yield from _projection("mamba.o", hidden, channels, mixer.bias)


def _mamba2(mixer: Mamba2, hidden: int) -> Iterator[Wanted]:
    outputs = {"mamba.gate": mixer.width, "mamba.in": mixer.conv_width, "mamba.step": mixer.heads}
    yield from _projections(hidden, outputs, mixer.bias)
    yield from _conv("mamba.conv", mixer.conv_width * mixer.kernel, mixer.conv_width if mixer.conv_bias else 0)
    for name in ("dt_bias", "a_log", "d"):
        yield _vector(f"mamba.{name}", mixer.heads)
    yield _vector("mamba.norm", mixer.width)
    yield from _projection("mamba.o", hidden, mixer.width, mixer.bias)


def _short_conv(mixer: ShortConv, hidden: int) -> Iterator[Wanted]:
    yield from _projections(hidden, dict.fromkeys(("conv.before", "conv.after", "conv.x"), hidden), mixer.bias)
    yield from _conv("conv.w", hidden * mixer.kernel, hidden if mixer.bias else 0)
    yield from _projection("conv.o", hidden, hidden, mixer.bias)


def _projections(hidden: int, outputs: dict[str, int], bias: bool) -> Iterator[Wanted]:
    for key, width in outputs.items():
        yield from _projection(key, width, hidden, bias)


def _projection(key: str, rows: int, cols: int, bias: bool) -> Iterator[Wanted]:
    yield Wanted(key, rows, cols)
    if bias:
        yield _vector(f"{key}_bias", rows)


def _conv(key: str, weights: int, biases: int) -> Iterator[Wanted]:
    yield _vector(key, weights)
    if biases:
        yield _vector(f"{key}_bias", biases)


def _feed_forward(prefix: str, hidden: int, width: int, activation: Activation, bias: bool) -> Iterator[Wanted]:
    if activation.is_gated:
        yield Wanted(f"{prefix}.gate", width, hidden)
    yield Wanted(f"{prefix}.up", width, hidden)
    yield Wanted(f"{prefix}.down", hidden, width)
    if bias:
        if activation.is_gated:
            yield _vector(f"{prefix}.gate_bias", width)
        yield _vector(f"{prefix}.up_bias", width)
        yield _vector(f"{prefix}.down_bias", hidden)


def _router(router: Router, count: int, hidden: int) -> Iterator[Wanted]:
    yield Wanted("router", count, hidden)
    if router.linear_bias:
        yield _vector("router_bias", count)
    if router.choice_bias:
        yield _vector("router_choice_bias", count)


def _shared(shared: Shared | None, hidden: int, activation: Activation) -> Iterator[Wanted]:
    if shared is None:
        return
    yield from _feed_forward("shared", hidden, shared.width, activation, bias=False)
    if shared.gated:
        yield Wanted("shared.sigmoid_gate", 1, hidden)
