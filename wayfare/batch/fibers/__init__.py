"""Examples as fibers: who runs when, whose error it is, and how deep a recursion may go."""
