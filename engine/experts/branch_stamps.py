"""How long the fills of each layer took, by the device's own timer: what the closed loop divides misses by."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.device.driver import Driver, Stream

_THREADS = 32  # a warp, of which one writes
_STAMPS = 2  # of a layer: its experts were planned; its fills were done


class FillStamps:
    """A pair of stamps for every MoE layer, in memory of the host that the device writes.

    Raises CannotPinError. Stamps are written beside the work that is timed: before it on a stream that
    would wait anyway, and after it when others have gone on already.
    """

    def __init__(self, driver: Driver, layers: int) -> None:
        self._driver = driver
        self._kernel = driver.kernel("stamp")
        self._box = driver.host(stamp_bytes(layers))
        self._stamps = self._box.array.view(np.uint64).reshape(layers, _STAMPS)

    def planned(self, stream: Stream, layer: int) -> None:
        """Stamp that fills of `layer` may begin."""
        self._launch(stream, layer, 0)

    def filled(self, stream: Stream, layer: int) -> None:
        """Stamp that they are done."""
        self._launch(stream, layer, 1)

    def take(self) -> NDArray[np.float64]:
        """Seconds of each layer since the last call, at a safe point; 0 for one that was not stamped."""
        began, ended = self._stamps.T
        seen = (began > 0) & (ended > began)
        seconds = np.where(seen, ended - began, 0) / 1e9
        self._stamps[:] = 0
        return seconds

    def close(self) -> None:
        self._box.free()

    def _launch(self, stream: Stream, layer: int, place: int) -> None:
        where = self._box.address + 8 * (_STAMPS * layer + place)
        self._driver.launch(stream, self._kernel, (1, 1, 1), _THREADS, (where,))


def stamp_bytes(layers: int) -> int:
    """Pinned memory that the stamps of so many layers take."""
    return 8 * _STAMPS * layers
