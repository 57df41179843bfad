"""From a spec to a program. What each operation means stands in docs/design.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.program.angles import rope_table
from engine.program.ir import Attr, Buffer, Cache, Op, Program, RopeTable, State
from engine.program.lifetimes import share_storage
from engine.program.lower_mamba import lower_mamba, lower_mamba2, lower_short_conv
from engine.program.lower_recurrent import lower_delta_net
from engine.spec.recurrent import DeltaNet, Mamba, Mamba2, ShortConv
from engine.spec.rope import Rope
from engine.spec.schema import (
    Activation,
    Attention,
    Dense,
    Ffn,
    LatentAttention,
    Mixer,
    Moe,
    Router,
    Shared,
    Spec,
)
from engine.spec.tensors import tensor_name

RESIDUAL, NORMED, PART = "x", "normed", "part"  # the residual stream, its norm, what a mixer or expert part adds to it
LOGITS = "logits"


def lower(spec: Spec, context: int = 0) -> Program:
    """The operations of a decoder, for a context of `context` tokens (0: all the model can).

    Logits are computed for selected rows only. Buffers whose lifetimes do not meet share storage.
    """
    build = _Build(spec, context or spec.context_length)
    build.embedding()
    for layer in range(len(spec.layers)):
        build.decoder_layer(layer)
    build.head()
    return Program(
        buffers=share_storage(build.buffers, build.ops, keep=(RESIDUAL, LOGITS)),
        ops=tuple(build.ops),
        caches=tuple(build.caches),
        ropes=tuple(build.ropes),
        output=LOGITS,
        vocab_size=spec.vocab_size,
        residual=RESIDUAL,
        layer_ends=tuple(build.layer_ends),
        states=tuple(build.states),
    )


@dataclass
class _Build:
    """A program in the making; `layer` is the decoder layer that operations are being added to."""

    spec: Spec
    context: int
    layer: int = -1
    moe_layers: int = 0
    buffers: dict[str, Buffer] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    caches: list[Cache] = field(default_factory=list)
    ropes: list[RopeTable] = field(default_factory=list)
    layer_ends: list[int] = field(default_factory=list)
    states: list[State] = field(default_factory=list)

    # --- the outline

    def embedding(self) -> None:
        self.buffer(RESIDUAL, self.spec.hidden_size)
        self.op("embed", (), (RESIDUAL,), ("embed",), scale=self.spec.embedding_scale)

    def decoder_layer(self, layer: int) -> None:
        self.layer = layer
        mixer, ffn = self.spec.layers[layer].mixer, self.spec.layers[layer].ffn
        if mixer is not None:
            self.part("attn_norm", lambda: self.mixer(mixer))
        if ffn is not None:
            self.part("ffn_norm", lambda: self.feed_forward(ffn))
        self.layer_ends.append(len(self.ops))

    def part(self, norm: str, operations: Callable[[], None]) -> None:
        """Norm, what `operations` make of it, and its addition to the residual stream."""
        normed = self.buffer(NORMED, self.spec.hidden_size)
        part = self.buffer(PART, self.spec.hidden_size)
        self.norm(RESIDUAL, normed, norm)
        operations()
        self.op("add", (RESIDUAL, part), (RESIDUAL,), scale=self.spec.residual_scale)

    def mixer(self, mixer: Mixer) -> None:
        match mixer:
            case Attention():
                self.attention(mixer)
            case LatentAttention():
                self.latent_attention(mixer)
            case DeltaNet():
                lower_delta_net(self, mixer, NORMED, PART)
            case Mamba():
                lower_mamba(self, mixer, NORMED, PART)
            case Mamba2():
                lower_mamba2(self, mixer, NORMED, PART)
            case ShortConv():
                lower_short_conv(self, mixer, self.spec.hidden_size, NORMED, PART)

    def feed_forward(self, ffn: Ffn) -> None:
        match ffn:
            case Dense():
                self.two_layers("ffn", ffn.width, ffn.activation, PART, bias=ffn.bias)
            case Moe():
                self.moe(ffn)

    def head(self) -> None:
        self.layer = -1
        hidden = self.spec.hidden_size
        selected = self.buffer("selected", hidden, domain="row")
        logits = self.buffer(LOGITS, self.spec.vocab_size, domain="row")
        self.op("select", (RESIDUAL,), (selected,))
        self.norm(selected, selected, "final_norm")
        matrix = "embed" if self.spec.tied_head else "head"
        self.op("linear", (selected,), (logits,), (matrix, ""), scale=self.spec.logit_scale)

    # --- mixers: from NORMED to PART

    def attention(self, mixer: Attention) -> None:
        q = self.buffer("q", mixer.heads * mixer.head_dim)
        k = self.buffer("k", mixer.kv_heads * mixer.head_dim)
        v = self.buffer("v", mixer.kv_heads * mixer.head_dim)
        mixed = self.buffer("mixed", mixer.heads * mixer.head_dim)
        biases = {"attn.q": mixer.q_bias, "attn.k": mixer.k_bias, "attn.v": mixer.v_bias}
        gate = {self.buffer("attn_gate", mixer.heads * mixer.head_dim): "attn.gate"} if mixer.gated else {}
        self.linears(NORMED, {q: "attn.q", k: "attn.k", v: "attn.v", **gate}, biases)
        if mixer.qk_norm != "none":
            whole = mixer.qk_norm == "full"
            self.norm(q, q, "attn.q_norm", group=mixer.heads * mixer.head_dim if whole else mixer.head_dim)
            self.norm(k, k, "attn.k_norm", group=mixer.kv_heads * mixer.head_dim if whole else mixer.head_dim)
        if mixer.rope is not None:
            self.rope(q, mixer.rope, heads=mixer.heads, stride=mixer.head_dim, offset=0)
            self.rope(k, mixer.rope, heads=mixer.kv_heads, stride=mixer.head_dim, offset=0)
        self.op(
            "attention",
            (q, k, v),
            (mixed,),
            (self.weight("attn.sinks") if mixer.sinks else "",),
            cache=self.cache(Cache(mixer.kv_heads, mixer.head_dim, mixer.head_dim, self.reach(mixer))),
            heads=mixer.heads,
            kv_heads=mixer.kv_heads,
            k_dim=mixer.head_dim,
            v_dim=mixer.head_dim,
            scale=mixer.scale,
            window=mixer.window,
            chunk=mixer.chunk,
            softcap=mixer.softcap,
        )
        for name in gate:
            self.op("gate", (mixed, name), (mixed,), activation="sigmoid")
        self.linears(mixed, {PART: "attn.o"}, {"attn.o": mixer.o_bias})

    def reach(self, mixer: Attention) -> int:
        """How far back a token sees at most; 0 where that is all that the model can.

        The context asked for plays no part: what is kept of a token does not change with it.
        """
        reach = min(filter(None, (mixer.window, mixer.chunk)), default=0)
        return reach if reach < self.spec.context_length else 0

    def latent_attention(self, mixer: LatentAttention) -> None:
        """The absorbed form: queries are taken into the latent space, so one key a token serves every head."""
        heads, latent = mixer.heads, mixer.kv_lora_rank
        key_dim, query_dim = latent + mixer.rope_dim, mixer.nope_dim + mixer.rope_dim
        q = self.buffer("q", heads * query_dim)
        latent_q = self.buffer("latent_q", heads * key_dim)
        kv_a = self.buffer("kv_a", latent)
        k = self.buffer("latent_k", key_dim)
        k_latent = self.view("latent_k.latent", k, 0, latent)
        k_rope = self.view("latent_k.rope", k, latent, mixer.rope_dim)
        biases = dict.fromkeys(("attn.q_a", "attn.kv_a", "attn.k_rope", "attn.o"), mixer.bias)
        keys = {kv_a: "attn.kv_a", k_rope: "attn.k_rope"}
        if mixer.q_lora_rank:
            q_a = self.buffer("q_a", mixer.q_lora_rank)
            self.linears(NORMED, {q_a: "attn.q_a", **keys}, biases)
            self.norm(q_a, q_a, "attn.q_a_norm", eps=mixer.norm_eps)
            self.linears(q_a, {q: "attn.q"})
        else:
            self.linears(NORMED, {q: "attn.q", **keys}, biases)
        self.norm(kv_a, k_latent, "attn.kv_a_norm", eps=mixer.norm_eps)
        if mixer.rope is not None:
            self.rope(k, mixer.rope, heads=1, stride=key_dim, offset=latent)
        self.head_linear(q, latent_q, "attn.k_up", heads, (query_dim, 0), (key_dim, 0))
        self.op(
            "head_copy",
            (q,),
            (latent_q,),
            heads=heads,
            in_stride=query_dim,
            in_offset=mixer.nope_dim,
            out_stride=key_dim,
            out_offset=latent,
            width=mixer.rope_dim,
        )
        if mixer.rope is not None:
            self.rope(latent_q, mixer.rope, heads=heads, stride=key_dim, offset=latent)
        mixed_latent = self.buffer("mixed_latent", heads * latent)
        mixed = self.buffer("mixed", heads * mixer.v_dim)
        self.op(
            "attention",
            (latent_q, k),
            (mixed_latent,),
            ("",),
            cache=self.cache(Cache(1, key_dim, 0)),
            heads=heads,
            kv_heads=1,
            k_dim=key_dim,
            v_dim=latent,
            scale=mixer.scale,
            window=0,
            chunk=0,
            softcap=0.0,
        )
        self.head_linear(mixed_latent, mixed, "attn.v_up", heads, (latent, 0), (mixer.v_dim, 0))
        self.linears(mixed, {PART: "attn.o"}, biases)

    # --- feed-forward parts: from NORMED to PART

    def two_layers(self, keys: str, width: int, activation: Activation, out: str, bias: bool = False) -> None:
        """Writes `down(act(gate(x), up(x)))` of the weights under `keys`, or `down(act(up(x)))`, to `out`."""
        biases = {f"{keys}.{name}": bias for name in ("gate", "up", "down")}
        if activation.is_gated:
            hidden, up = self.buffer("gate", width), self.buffer("up", width)
            self.linears(NORMED, {hidden: f"{keys}.gate", up: f"{keys}.up"}, biases)
            self.op("glu", (hidden, up), (hidden,), **_activation(activation))
        else:
            hidden = self.buffer("up", width)
            self.linears(NORMED, {hidden: f"{keys}.up"}, biases)
            self.op("relu2", (hidden,), (hidden,))
        self.linears(hidden, {out: f"{keys}.down"}, biases)

    def moe(self, moe: Moe) -> None:
        router = moe.router
        scores = self.buffer("router_logits", moe.experts.count)
        ids = self.buffer("expert_ids", router.top_k, dtype="i32")
        weights = self.buffer("expert_weights", router.top_k)
        self.linears(NORMED, {scores: "router"}, {"router": router.linear_bias})
        bias = self.weight("router_choice_bias") if router.choice_bias else ""
        self.op("route", (scores,), (ids, weights), (bias,), **_route(router))
        source = target = ""
        if moe.latent:
            source, target = self.buffer("latent", moe.latent), self.buffer("latent_part", moe.latent)
            self.linears(NORMED, {source: "latent_in"})
        attrs = {"layer": self.moe_layers, **_activation(moe.experts.activation)}
        self.op("experts", (source or NORMED, ids, weights), (target or PART,), **attrs)
        self.moe_layers += 1
        if moe.latent:
            self.linears(target, {PART: "latent_out"})
        if moe.shared is not None:
            self.shared_experts(moe.shared, moe.experts.activation)

    def shared_experts(self, shared: Shared, activation: Activation) -> None:
        out = self.buffer("shared", self.spec.hidden_size)
        self.two_layers("shared", shared.width, activation, out)
        if shared.gated:
            gate = self.buffer("shared_gate", 1)
            self.linears(NORMED, {gate: "shared.sigmoid_gate"})
            self.op("sigmoid_gate", (out, gate), (out,))
        self.op("add", (PART, out), (PART,), scale=1.0)

    # --- single operations and what they name

    def norm(self, source: str, target: str, key: str, group: int = 0, eps: float = 0.0) -> None:
        group = group or self.buffers[target].width
        self.op("rms_norm", (source,), (target,), (self.weight(key),), eps=eps or self.spec.norm_eps, group=group)

    def linears(self, source: str, outputs: dict[str, str], biases: dict[str, bool] | None = None) -> None:
        """One `linear` that reads `source` once for all `outputs` (buffer -> key)."""
        weights: list[str] = []
        for key in outputs.values():
            has_bias = biases is not None and biases.get(key, False)
            weights += [self.weight(key), self.weight(f"{key}_bias") if has_bias else ""]
        self.op("linear", (source,), tuple(outputs), tuple(weights), scale=1.0)

    def head_linear(
        self, source: str, target: str, key: str, heads: int, read: tuple[int, int], write: tuple[int, int]
    ) -> None:
        """`read` and `write` are (stride, offset) of a head's values."""
        self.op(
            "head_linear",
            (source,),
            (target,),
            (self.weight(key),),
            heads=heads,
            in_stride=read[0],
            in_offset=read[1],
            out_stride=write[0],
            out_offset=write[1],
        )

    def rope(self, buffer: str, rope: Rope, heads: int, stride: int, offset: int) -> None:
        table = rope_table(rope, self.context)
        if table not in self.ropes:
            self.ropes.append(table)
        index = self.ropes.index(table)
        attrs = {"heads": heads, "stride": stride, "offset": offset, "dim": rope.dim, "pairs": rope.pairs}
        self.op("rope", (buffer,), (buffer,), **attrs, table=index)

    def cache(self, cache: Cache) -> int:
        self.caches.append(cache)
        return len(self.caches) - 1

    def state(self, values: int) -> int:
        self.states.append(State(values))
        return len(self.states) - 1

    def weight(self, key: str) -> str:
        return tensor_name(key, self.layer)

    def buffer(self, role: str, width: int, domain: str = "token", dtype: str = "f32") -> str:
        """The buffer for a role; layers whose widths differ get buffers of their own."""
        return self._declare(role, Buffer(width, domain, dtype))

    def view(self, role: str, base: str, offset: int, width: int) -> str:
        return self._declare(role, Buffer(width, base=base, offset=offset))

    def _declare(self, role: str, buffer: Buffer) -> str:
        name, number = role, 1
        while self.buffers.get(name, buffer) != buffer:
            number += 1
            name = f"{role}.{number}"
        self.buffers[name] = buffer
        return name

    def op(
        self,
        kind: str,
        reads: tuple[str, ...],
        writes: tuple[str, ...],
        weights: tuple[str, ...] = (),
        /,
        **attrs: Attr,
    ) -> None:
        self.ops.append(Op(kind, reads, writes, weights, attrs, self.layer))


def _activation(activation: Activation) -> dict[str, Attr]:
    return {"activation": activation.name, "alpha": activation.alpha, "limit": activation.limit}


def _route(router: Router) -> dict[str, Attr]:
    return {
        "top_k": router.top_k,
        "scoring": router.scoring,
        "groups": router.groups,
        "top_groups": router.top_groups,
        "group_top": router.group_top,
        "normalize": router.normalize,
        "scale": router.scale,
    }
