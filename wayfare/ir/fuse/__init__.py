"""Fusion: which steps of a graph share a loop, and programs of kernels for any sizes."""
