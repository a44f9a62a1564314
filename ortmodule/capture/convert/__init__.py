"""The last stage: an exported program becomes an ONNX model, node by node; the translators of operators are in ops/."""
