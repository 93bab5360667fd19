"""Elementary functions written in the primitives of the loop language."""
