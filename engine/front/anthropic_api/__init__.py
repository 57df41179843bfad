"""Anthropic's interface of messages."""
