"""Ops on each element separately: arithmetic, activations, special functions."""
