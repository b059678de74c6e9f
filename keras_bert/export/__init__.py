"""Writes models as SavedModels and ONNX files.

A task object becomes a version folder through these files, in this order:

    task_export       the settings of the export; SavedModel or ONNX
    network           the layers of the model, on rows without padding
    saved_model       the signatures of a task, from texts to answers
    inputs            the checks of token ids in the graph
    onnx              the model, and the network of engines, as ONNX files
    model_card        README.md, also for the model of a run
    version_folders   the numbered folders

    engines           names the engines, and opens the one that runs an export
    engine_network    the network in onnxruntime or OpenVINO, compared with the SavedModel
"""
