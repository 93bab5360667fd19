"""The tests mirror the package; `tests.oracle` has PyTorch as referee."""
