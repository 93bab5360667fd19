"""Decompositions of matrices, linear systems, functions of matrices."""
