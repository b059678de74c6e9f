"""Writes models as SavedModels and ONNX files, and serves SavedModels over HTTP.

An export passes through these modules: network (the model in TensorFlow ops, on rows without
padding) -> saved_model (the signatures of a task, from texts to answers; with inputs, the checks of
token ids in the graph) or onnx (the model, and the network of engines, as ONNX files) ->
model_card (README.md) -> version_folders (the numbered folders). engines runs the network of an
export on another library, and server answers requests.
"""
