"""Programs recovered from runs: values matched across runs, sizes as formulas, loops and branches found."""
