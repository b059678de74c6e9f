"""Shows docstrings as users need them: a griffe extension.

The docstrings of keras_bert give examples as plain code below `Example:`, without a Markdown fence.
The arguments of a task class are those of its constructor, but users call `from_pretrained`.
"""

import re
import textwrap

import griffe

_EXAMPLE = re.compile(r"^(?P<title>Examples?:\n)(?P<code>(?:[ ]{4}.*\n?|\n)+)", re.MULTILINE)

_ARGUMENTS = re.compile(r"^Args:\n(?:[ ]{4}.*\n?|\n)+", re.MULTILINE)


class ExamplesAsCode(griffe.Extension):
    """Fences the code below `Example:` in every docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Adds the fences to the docstring of an object; a task class loses its arguments."""
        if obj.docstring:
            obj.docstring.value = _EXAMPLE.sub(_fenced, obj.docstring.value)
            if obj.is_class and obj.path.startswith("keras_bert.tasks") and "_open" in obj.source:
                obj.docstring.value = _ARGUMENTS.sub("", obj.docstring.value)


def _fenced(match: re.Match) -> str:
    code = textwrap.dedent(match["code"]).strip("\n")
    return match["title"] + textwrap.indent(f"```python\n{code}\n```", " " * 4) + "\n\n"
