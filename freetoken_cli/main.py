"""`freetoken`: what its script calls. Nothing is imported here, so that Ctrl-C is heard from the first moment."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line on this process's arguments; return its exit code."""
    try:
        from freetoken_cli.program import run

        return run(sys.argv[1:])
    except KeyboardInterrupt:  # before anything could be begun, or after all was done
        return 130
