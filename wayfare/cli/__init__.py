"""The command line: `wayfare doctor`, `wayfare cache`, `wayfare demo` and the rest."""
