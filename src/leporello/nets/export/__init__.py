"""Networks as files that run without Python: `export` looks at the path's suffix; c_*: C; onnx_*: ONNX."""
