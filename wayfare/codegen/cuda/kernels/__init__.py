"""Kernels written by hand in CUDA C, for what the loop language cannot express: one file for each subject."""
