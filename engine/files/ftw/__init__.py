"""The files of a converted model: reading, describing, verifying."""
