"""Fusion: which steps of a graph share a loop, and graphs as kernels for any size."""
