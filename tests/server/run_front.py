"""A front whose workers are fakes: `python run_front.py CONFIG`."""

import sys
from pathlib import Path

from engine.front.main import main

FAKE_WORKER = (sys.executable, "-P", str(Path(__file__).parent / "fake_worker.py"))

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], FAKE_WORKER))
