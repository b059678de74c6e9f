"""Serves exported models with TensorFlow Serving's REST API and a demo page.

    keras-bert serve --export_dir=DIR --port=8501

app starts aiohttp's server and shuts it down. A request passes through these modules: app (HTTP;
checks its host, site and key, reads the body within the limits) -> protocol, or api_formats
for the formats of other APIs (JSON to arrays) -> batching (joins rows of several requests) ->
versions (runs the loaded SavedModel or its engine) -> protocol or api_formats (arrays to JSON) ->
app (status, headers and body). metrics counts and times all of this, page/ is the demo, settings
are the flags.
"""
