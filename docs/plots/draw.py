"""Draws the plots of docs/experts.md and prints its tables.

From the root of the tree: `PYTHONPATH=. python docs/plots/draw.py TRACE`, with a recorded trace of Qwen3.6-35B-A3B;
without one, `prefill.png` alone, which needs none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from engine.base.progress import silent
from engine.experts.balance import Balancer
from engine.experts.contention import VirtualMachine, calibrate
from engine.experts.machines import MACHINES
from engine.experts.policies import POLICIES, LeastFrequent, Pool
from engine.experts.replay import RULES, Clock, replay, rules_for
from engine.experts.split import DEFAULT_SPLIT, Split
from engine.experts.trace import Trace, read_trace
from freetoken_cli.replay_plot import draw
from freetoken_cli.replaying import PERCENTS, sweep_policies
from tests.unit.prefill_ablation import draw_prefill
from tests.unit.virtual_steps import RECORD, Drive, excess, up_to

HERE = Path(__file__).parent
WARMUP = 128


def main(path: Path | None) -> None:
    draw_prefill(HERE / "prefill.png", table)
    if path is None:
        return
    trace = read_trace(path)
    miss_rates(trace)
    half_lives(trace)
    both_rules(trace)
    few_misses()
    steps_over_q()
    every_step()
    a_hog()


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(str(cell) for cell in row)} |")


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **kwargs: Any) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, **kwargs)


def save(figure: Figure, name: str) -> None:
    figure.savefig(HERE / name, dpi=90, metadata={"Software": None})


def miss_rates(trace: Trace) -> None:
    curves = sweep_policies(trace, POLICIES, PERCENTS, WARMUP, silent)
    rates = {name: dict(points) for name, points in curves.items()}
    table(
        "Misses, % of expert reads, every miss filled",
        ["slots, % of the pool", *POLICIES],
        [[percent, *(f"{rates[name][percent] * 100:.1f}" for name in POLICIES)] for percent in PERCENTS],
    )
    draw(HERE / "misses.png", curves, trace.header, 0.37)


def half_lives(trace: Trace) -> None:
    """`lfu` at 37 % by its half-life."""
    decode = trace.experts[trace.decode]
    header = trace.header
    rows = []
    for half_life in (8, 16, 32, 64, 128, 256):
        policy = LeastFrequent(Pool(header.moe_layers, header.experts, header.pool * 37 // 100), half_life)
        misses = 0
        for token, layers in enumerate(decode.tolist()):
            for layer, ids in enumerate(layers):
                missed = policy.step(token, layer, ids, int).misses
                misses += missed if token >= WARMUP else 0
        reads = (len(decode) - WARMUP) * header.moe_layers * header.top_k
        rows.append([half_life, f"{misses / reads * 100:.1f}"])
    table("lfu at 37 % by half-life", ["half-life, tokens", "misses, %"], rows)


def both_rules(trace: Trace) -> None:
    rows = []
    for machine in MACHINES.values():
        clock, rules = Clock(machine, RECORD), rules_for(machine, RECORD)
        for percent in (10, 20, 37, 55):
            slots = trace.header.pool * percent // 100
            found = {rule: replay(trace, "lru", slots, WARMUP, split, clock) for rule, split in rules.items()}
            times = [f"{each.seconds_per_token * 1e3:.2f} ({each.miss_rate * 100:.1f})" for each in found.values()]
            rows.append([machine.about, f"{calibrate(machine, RECORD).fraction:.2f}", percent, *times])
    table("Milliseconds that a token's misses take (and % missed), lru", ["machine", "f", "%", *RULES], rows)


def few_misses() -> None:
    """Up to 1 / f misses: what each rule makes of them, against the best of all q."""
    rows = []
    for machine in MACHINES.values():
        timing = calibrate(machine, RECORD)
        for misses in range(1, int(1 / timing.fraction) + 1):
            off = [excess(machine, split, misses) for split in (Split.balanced(timing), Split.carry(timing.fraction))]
            best, seconds = machine.best(misses, RECORD)
            rows.append(
                [machine.about, misses, best, f"{seconds * 1e6:.0f}", *(f"+{each * 100:.0f} %" for each in off)]
            )
    table("Below 1 / f", ["machine", "m", "best q", "us", "first rule", "second rule"], rows)


def every_step() -> None:
    rows = []
    for machine in MACHINES.values():
        timing = calibrate(machine, RECORD)
        above = range(int(1 / timing.fraction) + 1, 65)
        worst = []
        for balancer in (Balancer(Split.usual(timing), timing), Balancer(DEFAULT_SPLIT)):
            Drive(machine, balancer, up_to(16), noise=0.05).run(512)
            worst.append(max(excess(machine, balancer.split, misses) for misses in above))
        link, cpu = machine.rates(True, True)
        rows.append(
            [
                machine.about,
                f"{machine.link / machine.host:.2f}",
                f"{link:.1f} + {cpu:.1f}",
                f"{timing.fraction:.2f}",
                f"{above.start}-64",
                *(f"{each * 100:.1f} %" for each in worst),
            ]
        )
    head = ["machine", "B_P / B_H", "GB/s together", "f found", "m", "with a profile", "without"]
    table("Worst time a step over the best of all q, closed loop after 512 tokens", head, rows)


def steps_over_q(misses: int = 12) -> None:
    figure, grid = new_figure(9.5, 5.2, 2, 3, sharex=True)
    for axes, machine in zip(grid.flat, MACHINES.values(), strict=True):
        qs = range(misses + 1)
        axes.plot(qs, [machine.seconds(misses, q, RECORD) * 1e6 for q in qs], marker="o", ms=3, label="virtual machine")
        rest = machine.host - machine.link
        eq_2 = [max(q / machine.link, (misses - q) / rest) * RECORD / 1e3 for q in qs]
        axes.plot(qs, eq_2, ls="--", color="0.6", label="Eq. 2")
        chosen, _ = Split.usual(calibrate(machine, RECORD)).fills(misses)
        seconds = machine.seconds(misses, chosen, RECORD) * 1e6
        axes.plot([chosen], [seconds], marker="D", ls="", color="C3", label="the q chosen")
        axes.set_title(machine.about, fontsize=9)
        axes.set_ylim(0, 1.6 * max(machine.seconds(misses, q, RECORD) for q in (0, misses)) * 1e6)
        axes.grid(alpha=0.3)
    grid[0, 0].legend(fontsize=7)
    figure.supxlabel(f"q, fills of {misses} misses of 1.77 MB", fontsize=9)
    figure.supylabel("microseconds a layer", fontsize=9)
    save(figure, "steps.png")


def a_hog() -> None:
    """Mean excess of a layer over the best of all q, with the loop and with the probe's split left alone."""
    figure, grid = new_figure(9.5, 5.2, 2, 3, sharex=True, sharey=True)
    for axes, machine in zip(grid.flat, MACHINES.values(), strict=True):
        timing = calibrate(machine, RECORD)
        balancer = Balancer(Split.usual(timing), timing)
        drive = Drive(machine, balancer, up_to(16), noise=0.05)
        stuck = Split.usual(calibrate(machine.hogged(machine.host / 2), RECORD))
        tokens, with_loop, without, left = [], [], [], []
        for start in range(0, 1536, 8):
            drive.machine = machine.hogged(machine.host / 2) if 512 <= start < 1024 else machine
            drive.run(8)
            tokens.append(drive.tokens)
            with_loop.append(_mean_excess(drive.machine, balancer.split))
            without.append(_mean_excess(drive.machine, Split.usual(timing)))
            left.append(_mean_excess(drive.machine, stuck))
        axes.axvspan(512, 1024, color="0.93")
        axes.plot(tokens, left, color="C1", lw=1, label="the split of a probe beside a hog")
        axes.plot(tokens, without, color="0.6", lw=1, label="the split of a probe")
        axes.plot(tokens, with_loop, color="C0", label="closed loop")
        axes.set_title(machine.about, fontsize=9)
        axes.grid(alpha=0.3)
    grid[1, 1].legend(fontsize=7)
    figure.supxlabel("tokens; shaded: other programs ask for half of B_H", fontsize=9)
    figure.supylabel("time of a layer's misses over the best q, %", fontsize=9)
    save(figure, "hog.png")


def _mean_excess(machine: VirtualMachine, split: Split) -> float:
    return sum(excess(machine, split, misses) for misses in range(5, 17)) / 12 * 100


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
