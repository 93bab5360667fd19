"""Wayfare's own static bundle: a function as a file of tensors and a graph of registered ops, run without its source.

The file is safetensors; the graph is JSON in its metadata. It names ops of the registry and nothing else, so no file
can bring code with it.
"""

from wayfare.exporters.bundle.files import export, load_program
from wayfare.exporters.bundle.loaded import LoadedProgram

__all__ = ["LoadedProgram", "export", "load_program"]
