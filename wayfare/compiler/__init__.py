"""`wf.compile`: what Python did with tensors, recorded once and replayed as native plans for as long as it holds."""
