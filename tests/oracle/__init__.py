"""PyTorch as referee: its own operator database and its own semantics, run beside Wayfare.

Nothing here is needed to use Wayfare. The tests skip, with the reason, where PyTorch is not installed.
"""
