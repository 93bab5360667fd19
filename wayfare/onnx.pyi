from wayfare.exporters.onnx import *
