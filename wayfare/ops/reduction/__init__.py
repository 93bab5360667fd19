"""Ops along dimensions: sums, extremes, running sums, softmax, sorting, norms."""
