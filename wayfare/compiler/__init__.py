"""`wf.compile`: a call is recorded once as a graph, planned, and replayed natively while its guards hold."""
