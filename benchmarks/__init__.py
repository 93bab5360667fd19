"""Side-by-side measurements of Wayfare and its peers: ratios from one run, never bare times.

`python -m benchmarks SUITE` runs a suite; a suite is one module of this package (see `__main__`).
"""
