"""`python -P -m engine.worker CONFIG`: started by the front, never by hand."""

import sys

from engine.worker.loading import load_model
from engine.worker.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], load_model))
