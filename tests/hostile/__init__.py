"""Files and folders that lie, as tables: tests walk them, and `python -m tests.hostile FOLDER` writes them out."""
