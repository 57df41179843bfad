"""Numbers that have to be equal to the bit, what is no number too."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def assert_same_bits(ours: Floats, theirs: Floats, where: str = "") -> None:
    np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32), err_msg=where)
