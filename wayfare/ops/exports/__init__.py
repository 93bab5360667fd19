"""ONNX rules that are longer than a line, by family; the op records name them. They write with a builder they are
given, so nothing here needs ONNX installed."""
