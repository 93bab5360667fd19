"""Kernels that slide over images: convolution, pooling, im2col, resampling."""
