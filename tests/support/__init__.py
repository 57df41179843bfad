"""The pages that say what is supported: tables made of what was tested and measured, never written by hand."""
