"""The example client of docs/serving with the server."""

import json
import runpy
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def client(root: Path) -> dict:
    """Returns the globals of the example."""
    return runpy.run_path(str(root / "docs" / "serving" / "rest_client.py"))


@pytest.mark.slow
def test_prints_the_outputs_of_a_batch(client, serve_here, export_dir, capsys):
    url = serve_here(export_dir).url
    client["main"]([f"{url}/v1/models/model", "text=é", "text=two"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["label"] == ["neutral", "negative"]
    assert printed["version"] == [1, 1]


@pytest.mark.slow
def test_sends_token_ids_and_names_a_single_output(client, serve_here, export_dir):
    url = serve_here(export_dir).url
    inputs = {"input_ids": [[1, 2], [3, 4]], "weights": [[1.0, 0.5], [1.0, 1.0]]}
    outputs = client["predict"](f"{url}/v1/models/model", inputs, "token_ids")
    assert outputs == {"outputs": [2.0, 7.0]}


@pytest.mark.slow
def test_reports_errors_of_the_server(client, serve_here, export_dir):
    url = serve_here(export_dir).url
    with pytest.raises(SystemExit, match=r"404: .*absent"):
        client["main"]([f"{url}/v1/models/absent", "text=a"])
    with pytest.raises(SystemExit, match=r"http://127.0.0.1:1/v1/models/m: .*refused"):
        client["main"](["http://127.0.0.1:1/v1/models/m", "text=a"])
