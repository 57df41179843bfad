"""The OpenAI interface of responses, which agents speak."""
