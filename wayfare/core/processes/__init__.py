"""Worker processes: starting and ending them, sending them messages, errors that happened in them."""
