"""Native routines for work that the loop language has no words for: gathers, windows, transposes, scans."""
