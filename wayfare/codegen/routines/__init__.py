"""Ops as loops (gathers, windows, scans), and native routines for what a loop cannot do as fast."""
