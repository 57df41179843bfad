"""Readers of quantised checkpoints. `present` is the way in; each module beside it knows one family of layouts."""

from engine.files.sources.quantised.present import present

__all__ = ["present"]
