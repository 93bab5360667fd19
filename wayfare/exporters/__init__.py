"""From Python to files that run without it: `.wf` programs and ONNX models."""
