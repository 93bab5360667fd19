"""One number from the numbers at one place: arithmetic, activations, special functions."""
