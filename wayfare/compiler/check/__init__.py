"""The self-check: a replayed call is compared with plain Python."""
