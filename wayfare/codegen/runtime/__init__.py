"""Running native code: kernels, command lists, the thread pool, BLAS, and the kernel cache on disk."""
