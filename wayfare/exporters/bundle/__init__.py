"""`.wf` bundles: a function as a file of tensors and a graph of registered ops, run without its Python source.

The file is safetensors; the graph is JSON in its metadata. It can only name ops of the registry, so a file contains
no code.
"""

from wayfare.exporters.bundle.files import export, load_program
from wayfare.exporters.bundle.loaded import LoadedProgram

__all__ = ["LoadedProgram", "export", "load_program"]
