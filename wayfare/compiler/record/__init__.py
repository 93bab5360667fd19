"""Recording: a call runs as usual, and its ops are written down as a graph of steps."""
