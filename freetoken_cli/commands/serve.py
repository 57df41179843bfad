"""`freetoken serve`."""

EXAMPLES = ()
