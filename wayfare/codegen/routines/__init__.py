"""Native routines for what the loop language cannot express: gathers, sliding windows, transposes, scans."""
