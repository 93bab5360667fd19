"""What a function can see without being given it as an argument, and the guards that check it at every call."""
