"""Passes: a graph in, a simpler graph out that computes the same."""
