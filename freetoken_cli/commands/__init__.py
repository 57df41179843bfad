"""One module a verb: a function `command`, whose docstring is the help, and its `EXAMPLES`."""
