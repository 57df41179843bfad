"""The command line of freetoken. Importing it costs nothing: torch and numpy are reached only by what needs them."""

from engine import __version__ as __version__
