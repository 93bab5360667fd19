"""Why linear algebra beyond products and determinants stays in Python."""

from wayfare.op import NotExportable

NO_DECOMPOSITIONS = NotExportable("ONNX has no decompositions and no solvers of linear systems")
