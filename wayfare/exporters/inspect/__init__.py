"""Reading ONNX files that may come from anywhere: what `wf.onnx.inspect` and `wayfare inspect` show."""
