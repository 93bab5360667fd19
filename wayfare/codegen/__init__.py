"""What an array is on a device, and what can be computed on it without any notion of a graph."""
