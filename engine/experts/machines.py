"""Machines by name for `freetoken replay --machine`: the six of the paper (arXiv 2608.16157).

B_P and B_H are the paper's measurements. It does not give launch latencies, nor what the memory controller gives to a
mix; those here are ours, chosen as usual for such parts (a launch and its wait over PCIe 4 or 5, the hand-over to a
polling thread, a controller that gives a tenth more than the CPU's expert kernels reach), so times that follow from
them are predictions of a model and not measurements.
"""

from __future__ import annotations

from engine.base.errors import UsageError
from engine.base.nearest import did_you_mean
from engine.experts.contention import VirtualMachine

_US = 1e-6
_HEADROOM = 1.1  # what the memory controller gives one kind of traffic, over B_H


def _machine(name: str, link: float, host: float, fill_launch: float, cpu_launch: float, about: str) -> VirtualMachine:
    return VirtualMachine(name, link, host, fill_launch * _US, cpu_launch * _US, host * _HEADROOM, about=about)


MACHINES: dict[str, VirtualMachine] = {
    machine.name: machine
    for machine in (
        _machine("rtx4060-laptop", 11.8, 47.5, 12, 10, "RTX 4060 laptop"),
        _machine("rtx3090-server", 25.3, 56.7, 10, 8, "RTX 3090 server"),
        _machine("rtx4090-server", 25.1, 63.2, 9, 8, "RTX 4090 server"),
        _machine("rtx5090-server", 52.7, 77.3, 8, 8, "RTX 5090 server"),
        _machine("rtx5090-desktop", 49.0, 53.8, 8, 6, "RTX 5090 desktop"),
        _machine("rtxpro6000", 51.5, 178.0, 8, 8, "RTX PRO 6000 server"),
    )
}


def machine_named(name: str) -> VirtualMachine:
    """The machine called `name`; UsageError with the nearest names for an unknown one."""
    if name not in MACHINES:
        near = did_you_mean(name, MACHINES)
        raise UsageError(f"There is no machine {name!r}.", f"{near} There are {', '.join(MACHINES)}.".strip())
    return MACHINES[name]
