"""Checkpoints as they are published, presented as tensors under one set of names."""
