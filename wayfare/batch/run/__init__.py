"""Running: recorded calls are grouped, run as batched ops, and differentiated."""
