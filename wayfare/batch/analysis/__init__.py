"""What a function does besides computing, found by reading its bytecode without running it."""
