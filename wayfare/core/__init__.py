"""The ground: what a tensor, an op, a node and a mode are. Everything else is built on these files."""
