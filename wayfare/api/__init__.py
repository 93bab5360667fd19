"""PyTorch's functions and methods over the op records, and the namespaces they come in."""
