"""The command line of freetoken. Importing it costs nothing: torch and numpy are reached only by what needs them."""

__version__ = "0.1.0"
