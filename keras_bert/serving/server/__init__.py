"""The small server: TensorFlow Serving's REST routes for exported models, and a page to try them.

    python -m keras_bert.serving.server --export_dir=DIR --port=8501

A request flows through these files: routes (HTTP) -> bodies (its bytes, within limits) -> json_text
and protocol (JSON to arrays) -> batching (with other requests' rows) -> versions (the loaded
SavedModel) -> protocol (arrays to JSON) -> routes. lifecycle starts and drains it all.
"""
