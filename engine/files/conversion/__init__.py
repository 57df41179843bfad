"""From a checkpoint to a converted model: planned, packed, streamed, resumed."""
