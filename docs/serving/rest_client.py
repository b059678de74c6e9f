r"""Asks an exported model over REST: TensorFlow Serving, or the small server of keras_bert.

    python rest_client.py http://localhost:8501/v1/models/mrpc \
        text="It rained." text_pair="The sun shone."
    python rest_client.py http://localhost:8501/v1/models/mrpc/labels/stable \
        text="It rained." text_pair="The sun shone."

A name that is given twice makes a batch of two. Needs the standard library only.
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
        signature: which of the model's signatures is called.
        timeout: seconds.

    Raises:
        urllib.error.HTTPError: the server refused; its body is {"error": why}.
    """
    body = json.dumps({"signature_name": signature, "inputs": inputs})
    request = urllib.request.Request(
        f"{model}:predict", body.encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout) as response:
        outputs = json.load(response)["outputs"]
    # One output alone comes without its name.
    return outputs if isinstance(outputs, dict) else {"outputs": outputs}


def main(arguments: Sequence[str] | None = None) -> None:
    """Sends one request and prints what comes back."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="the model's URL")
    parser.add_argument("inputs", nargs="+", metavar="name=text", help="an input of the signature")
    parser.add_argument("--signature", default="serving_default")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds")
    given = parser.parse_args(arguments)

    texts = defaultdict(list)
    for argument in given.inputs:
        name, _, text = argument.partition("=")
        texts[name].append(text)
    try:
        outputs = predict(given.model, texts, given.signature, given.timeout)
    except urllib.error.HTTPError as error:
        sys.exit(f"{error.code}: {json.load(error)['error']}")
    except urllib.error.URLError as error:
        sys.exit(f"{given.model}: {error.reason}")
    print(json.dumps(outputs, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
