"""From a spec to a program: what a model is becomes what is computed."""
