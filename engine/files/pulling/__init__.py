"""From a name to a model in the store."""
