"""The loop language: expressions and loops, how they lie over memory, and what they mean (an interpreter in NumPy)."""
