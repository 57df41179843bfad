"""`python -P -m engine.front CONFIG`: started by the command line. docs/api.md describes CONFIG."""

import sys

from engine.front.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
