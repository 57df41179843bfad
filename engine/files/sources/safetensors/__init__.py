"""Folders of safetensors."""
