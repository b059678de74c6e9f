"""Runs the network of an exported model on TensorFlow, onnxruntime or OpenVINO.

opening (names and precisions; opens the engine of an export) -> functions (a signature as
preprocess, network, decode; the check that the answers are the SavedModel's) -> network (rows in
padded groups, on the library).
"""
