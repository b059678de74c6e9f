r"""Calls an exported model over REST, on TensorFlow Serving or keras_bert's server.

    python rest_client.py http://localhost:8501/v1/models/mrpc \
        text="It rained." text_pair="The sun shone."
    python rest_client.py http://localhost:8501/v1/models/mrpc/labels/stable \
        text="It rained." text_pair="The sun shone."

Repeat a name to send a batch. Needs the standard library only.
"""

import argparse
import json
import sys
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Sequence


def predict(
    model: str, inputs: dict[str, list], signature: str = "serving_default", timeout: float = 10.0
) -> dict[str, list]:
    """Sends a batch to a model and returns its outputs by name.

    Args:
        model: its URL, such as http://localhost:8501/v1/models/mrpc.
        inputs: the batch of each input: texts, or lists of token ids.
        signature: the name of the signature to call.
        timeout: seconds.

    Raises:
        urllib.error.HTTPError: the server rejects the request; its body is {"error": message}.
    """
    body = json.dumps({"signature_name": signature, "inputs": inputs})
    request = urllib.request.Request(
        f"{model}:predict", body.encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout) as response:
        outputs = json.load(response)["outputs"]
    # A single output has no name in the response.
    return outputs if isinstance(outputs, dict) else {"outputs": outputs}


def main(arguments: Sequence[str] | None = None) -> None:
    """Sends one request and prints the outputs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="the model's URL")
    parser.add_argument(
        "inputs", nargs="+", metavar="name=text", help="a text for an input of the signature"
    )
    parser.add_argument("--signature", default="serving_default", help="name of the signature")
    parser.add_argument("--timeout", type=float, default=10.0, help="timeout in seconds")
    flags = parser.parse_args(arguments)

    texts = defaultdict(list)
    for argument in flags.inputs:
        name, _, text = argument.partition("=")
        texts[name].append(text)
    try:
        outputs = predict(flags.model, texts, flags.signature, flags.timeout)
    except urllib.error.HTTPError as error:
        sys.exit(f"{error.code}: {json.load(error)['error']}")
    except urllib.error.URLError as error:
        sys.exit(f"{flags.model}: {error.reason}")
    print(json.dumps(outputs, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
