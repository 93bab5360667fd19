"""From the loop language to CUDA C, and from CUDA C to kernels on a GPU."""
