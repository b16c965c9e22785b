"""A model as one ONNX graph, from tokens to the embedding, and reading it without torch."""
