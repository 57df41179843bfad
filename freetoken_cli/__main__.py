"""`python -m freetoken_cli` is `freetoken`."""

import sys

from freetoken_cli.main import main

sys.exit(main())
