"""Our programs against transformers, family by family, on tiny random checkpoints.

`python -m tests.parity FAMILY` prints where the first difference is.
"""
