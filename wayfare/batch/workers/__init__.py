"""`wf.map(..., workers=n)`: the examples of a map spread over processes."""
