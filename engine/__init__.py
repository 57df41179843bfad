"""The engine: what a model is, where its bytes are, and how it answers."""

__version__ = "0.1.0"
