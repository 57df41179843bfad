"""What machine a profile must have been measured on to be believed here."""

from __future__ import annotations

from engine import __version__, _native
from engine.base.hardware import read_hardware
from engine.base.profile import Machine


def this_machine() -> Machine:
    """What a profile that is measured here and now is valid for."""
    hardware, threads = read_hardware(), _native.topology()["threads"]
    return Machine.describe(hardware.cpu, threads, hardware.memory_total, _native.isas()[-1], __version__)
