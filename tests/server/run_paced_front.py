"""A front whose workers take their time: `python run_paced_front.py CONFIG`."""

import sys
from pathlib import Path

from engine.front.main import main

PACED_WORKER = (sys.executable, "-P", str(Path(__file__).parent / "paced_worker.py"))

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], PACED_WORKER))
