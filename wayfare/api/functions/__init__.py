"""The public functions, with PyTorch's names and signatures; most become methods of Tensor too."""
