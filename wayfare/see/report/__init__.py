"""`wf.report`: one HTML page about a model — data flow, training, prediction, graph, metrics, time and memory."""

from wayfare.see.report.frontend import Report, report

__all__ = ["Report", "report"]
