"""What all tests share: property tests draw the same examples at every run, unless asked to explore."""

from __future__ import annotations

from hypothesis import settings

# A change should not fail for an example that its author never saw, nor on a machine that is busy with something else.
# `--hypothesis-profile=explore` looks for new examples.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, print_blob=True, deadline=None)
settings.load_profile("steady")
