"""Automatic batching: Python written for one example, run for many of them at once."""
