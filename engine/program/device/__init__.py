"""Programs on a device: buffers and weights in its memory, operations as launches, steps as graphs.

`executor.py` takes steps; `operations.py` is the table from a kind of operation to its launches. Everything here is the
same for every driver; a driver without kernels for mixers has `native_mixers.py`.
"""
