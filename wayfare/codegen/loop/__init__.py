"""The loop language: expressions, loops, memory layouts, and a NumPy interpreter that defines what a loop means."""
