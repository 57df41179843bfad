"""The reference executor: every operation in a few lines of torch, slow and obvious."""
