"""Serves exported models with TensorFlow Serving's REST API and a demo page.

    keras-bert serve --export_dir=DIR --port=8501

A request passes through these modules: connections (accepts it) -> routes (HTTP; checks its host
and site) -> bodies (reads the body, within limits) -> json_text and protocol (JSON to arrays) ->
batching (joins rows of several requests) -> versions (runs the loaded SavedModel) -> protocol
(arrays to JSON) -> responses (status, headers and body) -> routes. lifecycle starts the server and
shuts it down.
"""
