"""Parts of the check for machines with a GPU: attention with a reach and to selections, delta nets and state spaces."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.experts.split import Split
from engine.files.codecs import align
from engine.memory.blocks import ContextRoom
from engine.program.device.buffers import DeviceBuffers
from engine.program.device.mixers import MakeMixers
from engine.program.executor import Batch
from engine.program.ir import Op, Program, State
from tests.gpu.mixing import prepared, program_with, weights_with
from tests.unit.device_rig import Model
from tests.unit.native_model import VOCAB
from tests.unit.recurrent_model import ROOM, Part, batch_of, hybrid_model
from tests.unit.selection_rig import Selection, run, tokens_of

if TYPE_CHECKING:
    from tests.gpu.gpu_check import Check

TOLERANCE = 1e-3  # of the largest logit: what is rounded to 16 bits a block may round to the other side
MIB = 1 << 20


def hybrid_steps(check: Check) -> None:
    """A small model of every mixer: logits near the CPU's, and a resumed sequence like a cold one."""
    model = hybrid_model()
    native = model.native(room=ROOM)
    device = model.device((3,), Split.carry(0.4), driver=check.driver, make=check.make, room=ROOM)
    try:
        text = np.random.default_rng(0).integers(0, VOCAB, 60).tolist()
        steps = (
            batch_of(Part(0, text[:40], saves=((32, 5),)), Part(1, text[40:43])),
            batch_of(Part(1, text[43:44], 3), Part(0, text[40:41], 40), Part(2, text[:17])),
            batch_of(Part(0, text[41:48], 41)),
        )
        worst = max(_difference(device.step(batch), native.step(batch)) for batch in steps)
        check.note("hybrid model: logits beside the CPU's", f"{worst:.1e} of the largest", worst <= TOLERANCE)
        device.copy_block("state", 5, 3)
        for kind in ("page", "window"):
            for page in range(Part.PAGES):
                device.copy_block(kind, page, page + 3 * Part.PAGES)
        resumed = device.step(batch_of(Part(3, text[32:], 32), given_up=False))
        cold = device.step(batch_of(Part(1, text)))[32:]
        far = _difference(resumed, cold)
        check.note("hybrid model: resumed beside cold", f"{far:.1e} of the largest", far <= TOLERANCE)
    finally:
        device.close()


SELECTIONS = {
    "positions": Selection(top_k=37, index_heads=20, whole=True),
    "blocks": Selection(
        top_k=3, weighted=False, block=16, local=1, index_heads=2, kv_heads=2, heads=6, v_dim=24, whole=True
    ),
}


def selection_steps(check: Check) -> None:
    """Attention to what was chosen, in prompts and token by token: outputs near the CPU's."""
    steps = [60, 1, 1, 40]
    for what, selection in SELECTIONS.items():
        model = Model(selection.program(), selection.dense(), ())
        device = model.device((), driver=check.driver, make=check.make)
        try:
            tokens = tokens_of(sum(steps))
            far = _difference(run(device, tokens, steps), run(model.native(), tokens, steps))
            check.note(f"chosen {what}: outputs beside the CPU's", f"{far:.1e} of the largest", far <= TOLERANCE)
        finally:
            device.close()


def recurrence_rates(check: Check) -> None:
    """The delta rule of 32 heads of 128 x 128, for single tokens and for a prompt, beside the bytes of its state."""
    driver, heads, dim = check.driver, 32, 128
    if driver.name == "sim":
        heads, dim = 4, 16
    program = _delta_program(heads, dim)
    prompt = check.sizes.prompt
    dense = weights_with({}, np.random.default_rng(0))
    buffers = DeviceBuffers(driver, program, prompt, 16)
    make: MakeMixers = check.make_mixers
    mixers = make(
        driver, program, dense, buffers, kv_dtype="f16", page_tokens=16, room=ContextRoom(states=16),
        max_tokens=prompt, threads=None, isa="",
    )  # fmt: skip
    try:
        for name, buffer in program.buffers.items():
            if buffer.domain == "token":
                buffers.write(name, np.full((prompt, buffer.width), 0.1, np.float32))
        for sequences, count in ((1, 1), (8, 1), (1, prompt)):
            taken = _seconds(check, program, mixers, sequences, count)
            moved = sequences * 2 * align(4 * program.states[0].values, 64)
            what = f"delta rule, {sequences} x {count} tokens"
            check.note(what, f"{taken * 1e6:.0f} us, state at {moved / taken / 1e9:.0f} GB/s read and written")
    finally:
        mixers.free()
        buffers.free()


def _seconds(check: Check, program: Program, mixers: Any, sequences: int, count: int) -> float:
    """Of one launch for so many sequences of so many tokens each."""
    starts = np.arange(sequences + 1, dtype=np.int32) * count
    none = tuple(np.zeros(0, np.int32) for _ in range(sequences))
    positions = np.tile(np.arange(1, count + 1, dtype=np.int32), sequences)
    batch = Batch(
        np.ones(starts[-1], np.int32), positions, starts, none, np.zeros(0, np.int32),
        states=np.arange(sequences, dtype=np.int32),
    )  # fmt: skip
    with prepared(check.driver, mixers, batch, int(starts[-1])) as (stream, extent):
        found = []
        for _ in range(6):
            began = perf_counter()
            for _ in range(check.sizes.repeats):
                mixers.issue(stream, 1, program.ops[1], extent)
            check.driver.synchronise(stream)
            found.append(perf_counter() - began)
    return median(found[1:]) / check.sizes.repeats


def _delta_program(heads: int, dim: int) -> Program:
    widths = {"q": heads // 2 * dim, "k": heads // 2 * dim, "v": heads * dim, "g": heads, "b": heads, "o": heads * dim}
    attrs = {"state": 0, "key_heads": heads // 2, "heads": heads, "k_dim": dim, "v_dim": dim, "scale": dim**-0.5}
    op = Op("delta_rule", ("q", "k", "v", "g", "b"), ("o",), (), attrs)
    return program_with(op, widths, states=[State(heads * dim * dim)])


def _difference(ours: Any, theirs: Any) -> float:
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())
