"""Runs the network of an exported model on TensorFlow, onnxruntime or OpenVINO."""
