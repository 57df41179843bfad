"""Ollama's interface, so that its clients work unchanged."""
