"""What tests have a device do."""

from __future__ import annotations

import numpy as np

from engine.device.driver import Driver, Stream


def words(driver: Driver, address: int, count: int = 1) -> list[int]:
    """The uint32 values at an address."""
    out = np.zeros(count, np.uint32)
    driver.download(address, out)
    return [int(v) for v in out]


def add_rows(driver: Driver, stream: Stream, a: int, b: int, y: int, rows: int, live: int, scale: float = 1.0) -> None:
    """y = a + scale * b of one column."""
    kernel = driver.kernel("add_rows")
    driver.launch(stream, kernel, (1, rows, 1), 32, [a, 1, b, 1, scale, 1, live, y, 1])
