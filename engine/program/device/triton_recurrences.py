"""Recurrent operations of a CUDA device: Triton's kernels over states that stay in its memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.device.driver import Stream
from engine.files.codecs import align
from engine.program.device.block_pools import BlockPools
from engine.program.device.buffers import DeviceBuffers, Rows
from engine.program.device.launching import cannot_run
from engine.program.device.mixer_data import MixerLayout, word_address
from engine.program.device.step_data import Extent
from engine.program.device.triton_launch import TritonLauncher, block_of
from engine.program.ir import Op, State

_STATE_LANES = 16  # states begin at multiples of so many values, as the native executor's do
_MOST_PROGRAMS = 32  # that share the sequences of a step
_HELD = 4096  # values of a state that a program keeps in registers
_CHANNELS, _CONV_TILE = 128, 16  # channels and tokens of a program


@dataclass(frozen=True)
class RecurrentWeights:
    """Where vectors lie on the device, and how many values they have."""

    addresses: Mapping[str, int]
    lengths: Mapping[str, int]

    def address(self, name: str) -> int:
        """0 for a vector that is absent ("")."""
        return self.addresses[name] if name else 0


def state_offsets(states: tuple[State, ...]) -> tuple[tuple[int, ...], int]:
    """Where each operation's state begins in a slot, and a slot's size, in values."""
    offsets, end = [], 0
    for state in states:
        offsets.append(end)
        end += align(state.values, _STATE_LANES)
    return tuple(offsets), end


class TritonRecurrences:
    """Launches of `conv`, `compress`, `delta_rule` and `ssm`."""

    def __init__(
        self,
        launcher: TritonLauncher,
        pools: BlockPools,
        buffers: DeviceBuffers,
        states: tuple[State, ...],
        weights: RecurrentWeights,
    ) -> None:
        self._launcher, self._pools, self._buffers, self._weights = launcher, pools, buffers, weights
        self._offsets, self._slot_values = state_offsets(states)
        self._kinds: Mapping[str, Callable[[Stream, Op, Extent], None]] = {
            "conv": self._conv,
            "compress": self._compress,
            "delta_rule": self._delta_rule,
            "ssm": self._ssm,
        }

    def issue(self, stream: Stream, op: Op, extent: Extent) -> None:
        """The launch of one operation."""
        self._kinds[op.kind](stream, op, extent)

    def _conv(self, stream: Stream, op: Op, extent: Extent) -> None:
        x, y = self._buffers[op.reads[0]], self._buffers[op.writes[0]]
        channels, kernel = _int(op, "channels"), _int(op, "kernel")
        _require(op, x.width == y.width == channels and kernel > 1, "the buffers do not hold its channels")
        _require(op, x.address == y.address or apart(x, y), "it writes over a part of what it reads")
        self._launcher.launch(
            stream,
            "convolve",
            {
                "KERNEL": kernel,
                "TILE": _CONV_TILE if extent.layout.tokens > 1 else 1,
                "BLOCK": _CHANNELS,
                "SILU": int(_activation(op) == "silu"),
                "HAS_BIAS": int(bool(op.weights[1])),
            },
            (_programs(extent), -(-channels // _CHANNELS), 1),
            x=x.address,
            y=y.address,
            weights=self._weights.address(op.weights[0]),
            bias=self._weights.address(op.weights[1]),
            **self._sequences(op, extent),
            x_stride=x.stride,
            y_stride=y.stride,
            slot_values=self._slot_values,
            channels=channels,
        )

    def _compress(self, stream: Stream, op: Op, extent: Extent) -> None:
        kv, gate = (self._buffers[name] for name in op.reads)
        entry = self._buffers[op.writes[0]]
        every, overlap, dim = _int(op, "every"), _int(op, "overlap"), entry.width
        _require(op, kv.width == gate.width == (1 + overlap) * dim, "the buffers do not hold its channels")
        _require(op, every > 1, "an entry stands for a single token")
        _require(op, self._weights.lengths[op.weights[0]] == every * kv.width, "its biases are not one a value")
        _require(op, apart(entry, kv) and apart(entry, gate), "it writes over what it reads")
        self._launcher.launch(
            stream,
            "compress",
            {"EVERY": every, "OVERLAP": overlap, "BLOCK": _CHANNELS},
            (_programs(extent), -(-dim // _CHANNELS), 1),
            kv=kv.address,
            gate=gate.address,
            entry=entry.address,
            bias=self._weights.address(op.weights[0]),
            positions=extent.base + extent.layout.positions,
            **self._sequences(op, extent),
            kv_stride=kv.stride,
            gate_stride=gate.stride,
            entry_stride=entry.stride,
            slot_values=self._slot_values,
            dim=dim,
        )

    def _delta_rule(self, stream: Stream, op: Op, extent: Extent) -> None:
        q, k, v, *learned = (self._buffers[name] for name in op.reads)
        g, b = learned or (q, q)  # nobody reads them where there is no correction
        out = self._buffers[op.writes[0]]
        heads, key_heads = _int(op, "heads"), _int(op, "key_heads")
        k_dim, v_dim = _int(op, "k_dim"), _int(op, "v_dim")
        _require(op, q.width == k.width == key_heads * k_dim, "the buffers of keys do not hold its heads")
        _require(op, v.width == out.width == heads * v_dim, "the values do not hold its heads")
        _require(op, not learned or b.width == heads, "the updates' strengths are not one a head")
        known = not learned or g.width in (heads, heads * k_dim)
        _require(op, known, "the decay is neither one a head nor one a key channel")
        _require(op, all(apart(out, read) for read in (q, k, v, g, b)), "it writes over what it reads")
        k_block = block_of(k_dim)
        v_block = min(block_of(v_dim), max(16, _HELD // k_block))
        self._launcher.launch(
            stream,
            "delta_rule",
            {
                "HEADS": heads,
                "SHARED_BY": heads // key_heads,
                "K_DIM": k_dim,
                "K_BLOCK": k_block,
                "V_DIM": v_dim,
                "V_BLOCK": v_block,
                "A_CHANNEL": int(bool(learned) and g.width != heads),
                "CORRECTS": int(bool(learned)),
            },
            (_programs(extent), heads, -(-v_dim // v_block)),
            q=q.address,
            k=k.address,
            v=v.address,
            g=g.address,
            b=b.address,
            out=out.address,
            **self._sequences(op, extent),
            q_stride=q.stride,
            k_stride=k.stride,
            v_stride=v.stride,
            g_stride=g.stride,
            b_stride=b.stride,
            out_stride=out.stride,
            slot_values=self._slot_values,
            scale=_real(op, "scale"),
            slope=0.0 if learned else _real(op, "slope"),
        )

    def _ssm(self, stream: Stream, op: Op, extent: Extent) -> None:
        x, dt, b, c = (self._buffers[name] for name in op.reads)
        y = self._buffers[op.writes[0]]
        heads, head_dim = _int(op, "heads"), _int(op, "head_dim")
        groups, state_dim = _int(op, "groups"), _int(op, "state_dim")
        _require(op, x.width == y.width == heads * head_dim and dt.width == heads, "the buffers do not hold its heads")
        _require(op, b.width == c.width == groups * state_dim, "the buffers do not hold its groups")
        _require(op, all(apart(y, read) for read in (dt, b, c)), "it writes over what it reads")
        _require(op, x.address == y.address or apart(x, y), "it writes over a part of what it reads")
        a_length = self._weights.lengths[op.weights[0]]
        _require(op, a_length in (heads, heads * state_dim), "a_log is neither one a head nor one a value of its state")
        group_rows = heads // groups * head_dim
        columns = block_of(state_dim)
        rows = min(block_of(group_rows), max(16, _HELD // columns))
        self._launcher.launch(
            stream,
            "state_space",
            {
                "HEAD_DIM": head_dim,
                "STATE_DIM": state_dim,
                "GROUP_ROWS": group_rows,
                "ROWS": rows,
                "COLUMNS": columns,
                "A_CHANNEL": int(a_length != heads),
            },
            (_programs(extent), groups, -(-group_rows // rows)),
            x=x.address,
            dt=dt.address,
            b=b.address,
            c=c.address,
            y=y.address,
            a_log=self._weights.address(op.weights[0]),
            d=self._weights.address(op.weights[1]),
            dt_bias=self._weights.address(op.weights[2]),
            **self._sequences(op, extent),
            x_stride=x.stride,
            dt_stride=dt.stride,
            b_stride=b.stride,
            c_stride=c.stride,
            y_stride=y.stride,
            slot_values=self._slot_values,
            dt_min=_real(op, "dt_min"),
            dt_max=_real(op, "dt_max"),
        )

    def _sequences(self, op: Op, extent: Extent) -> dict[str, int]:
        layout = MixerLayout(extent.layout.tokens)
        return {
            "states": self._pools.address("state") + 4 * self._offsets[_int(op, "state")],
            "starts": word_address(extent, layout.starts),
            "slots": word_address(extent, layout.slots),
            "fresh": word_address(extent, layout.fresh),
            "saves": word_address(extent, layout.saves),
            "sequences": word_address(extent, layout.sequences),
        }


def apart(one: Rows, other: Rows) -> bool:
    """Whether two buffers have no value in common."""
    return one.root != other.root or (
        one.offset + one.width <= other.offset or other.offset + other.width <= one.offset
    )


def _programs(extent: Extent) -> int:
    return min(extent.layout.tokens, _MOST_PROGRAMS)


def _int(op: Op, name: str) -> int:
    return int(op.attrs[name])


def _real(op: Op, name: str) -> float:
    return float(op.attrs[name])


def _activation(op: Op) -> str:
    kind = str(op.attrs["activation"])
    _require(op, kind in ("silu", "none"), f"the activation {kind} is unknown")
    return kind


def _require(op: Op, condition: bool, why: str) -> None:
    if not condition:
        raise cannot_run(op, why)
