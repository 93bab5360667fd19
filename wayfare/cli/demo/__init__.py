"""What `wayfare demo` runs: small, complete programs written against the public API only."""
