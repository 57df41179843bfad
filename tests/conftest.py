"""What all tests share: property tests draw the same examples at every run, unless asked to explore."""

from __future__ import annotations

from hypothesis import settings

# A change should not fail for an example that its author never saw. `--hypothesis-profile=explore` looks for new ones.
settings.register_profile("steady", derandomize=True)
settings.register_profile("explore", derandomize=False, print_blob=True)
settings.load_profile("steady")
