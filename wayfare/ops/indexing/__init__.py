"""Elements and rows chosen by integer tensors: indexing, gather and scatter, searching, segments."""
