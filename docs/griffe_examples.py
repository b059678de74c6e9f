"""Shows the examples of docstrings as code: a griffe extension.

The docstrings of keras_bert give examples as plain code below `Example:`, without a Markdown fence.
"""

import re
import textwrap

import griffe

_EXAMPLE = re.compile(r"^(?P<title>Examples?:\n)(?P<code>(?:[ ]{4}.*\n?|\n)+)", re.MULTILINE)


class ExamplesAsCode(griffe.Extension):
    """Fences the code below `Example:` in every docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Adds the fences to the docstring of an object."""
        if obj.docstring:
            obj.docstring.value = _EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(match: re.Match) -> str:
    code = textwrap.dedent(match["code"]).strip("\n")
    return match["title"] + textwrap.indent(f"```python\n{code}\n```", " " * 4) + "\n\n"
