"""A part of the check for machines with a GPU, with Triton's kernels interpreted. Run with TRITON_INTERPRET=1.

The argument is the part's name. Prints its rows as a JSON array.
"""

from __future__ import annotations

import json
import sys
from functools import partial

from engine.program.device.executor import DeviceExecutor
from engine.program.device.triton_mixers import TritonMixers
from tests.gpu.gpu_check import PARTS, SMALL, Check
from tests.gpu.interpreted import MIB, InterpretingDriver, load


def main() -> None:
    mixers = partial(TritonMixers, load=load)
    driver = InterpretingDriver(256 * MIB, granularity=4096)
    check = Check(driver, SMALL, partial(DeviceExecutor, make_mixers=mixers), mixers)
    (part,) = (part for part in PARTS if part.__name__ == sys.argv[1])
    part(check)
    print(json.dumps(check.rows))


if __name__ == "__main__":
    main()
