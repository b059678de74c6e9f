"""Extracts English sentences from docstrings and reference pages.

Docstrings mix prose with signatures, lists, examples and markup. Only sentences that read as
English are kept: they start with a capital letter, end with a full stop, question mark or
exclamation mark, and consist mostly of words rather than code.
"""

import re
import textwrap

from data_tools.corpus.sentences import split_sentences

_HEADING = re.compile(r"([=\-~^\"'*+#.`_])\1{2,}$")
_BULLET = re.compile(r"(?:[*\-+o•]|\(?(?:\d{1,2}|[a-z])[.)])\s+(?=\S)")
_SIGNATURE = re.compile(r"[\w.]+\(.*\)(?:\s*(?:->|=|:).*)?:?$")
_EXAMPLE = re.compile(r">>>|\.\.\. |\$ |%|\.\. |@|#|\||\+-")
_MARKUP = (
    (re.compile(r":[a-z:+-]+:`[~!]?([^`<]+?)(?:\s*<[^>]*>)?`"), r"\1"),  # :class:`~a.b`
    (re.compile(r"``(.+?)``"), r"\1"),
    (re.compile(r"`([^`<]+?)(?:\s*<[^>]*>)?`_{0,2}"), r"\1"),
    (re.compile(r"(?<![\w*])\*{1,2}([^\s*](?:[^*]*[^\s*])?)\*{1,2}(?![\w*])"), r"\1"),
    (re.compile(r"`+([^`']+)'+"), r"\1"),  # old-style quotes: `text'
    (re.compile(r"`"), ""),  # unbalanced backquotes
    (re.compile(r"\s?\[\d+\]_?"), ""),  # footnotes
    (
        re.compile(
            r"^(?:Note|Warning|Tip|Caution|See also|Deprecated|(?:New|Added|Changed|Deprecated "
            r"since|Removed) (?:in )?(?:version )?[\d.]+)\s*(?::\s*(?=\S)|\.?$)"
        ),
        "",
    ),
    (re.compile(r"\s*::$"), ":"),
    (re.compile(r"(?<=[a-z])\s--\s(?=[a-z])"), " - "),
    (re.compile(r"\s+"), " "),
)
# A sentence may also start with a lower-case identifier: "filename is the name of ...".
_START = re.compile(
    r"[\"'(“]?[A-Z]"
    r"|[\"']?[a-z]\w*[\"']? (?:is|are|was|can|must|should|will|may|has|returns|specifies) "
)
_END = re.compile(r"[.!?][\"')”]*$")
_WORD = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*")
_FUNCTION_WORDS = """
    a an the is are was were be been being has have had do does did will would can could may might
    must shall should not no of to in on at by for from with as into and or but if when while this
    that these those it its they their which who what how than then so all any each return returns
"""
_FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())


def prose_sentences(text: str) -> list[str]:
    """Returns the English sentences of a docstring or reference page, without their markup."""
    sentences = []
    for number, paragraph in enumerate(_paragraphs(text)):
        paragraph = _strip_markup(paragraph)
        # The summary line of a docstring often lacks a full stop.
        if number == 0 and paragraph[-1:].isalnum() and paragraph[0].isupper():
            paragraph += "."
        sentences += filter(reads_as_english, split_sentences(paragraph))
    return sentences


def _paragraphs(text: str) -> list[str]:
    """Splits a page into paragraphs by its layout; skips headings, examples and signatures.

    A paragraph consists of lines with equal indentation, not counting the bullet of a list item.
    """
    lines = textwrap.dedent(text.expandtabs()).split("\n")
    paragraphs: list[str] = []
    current: list[str] = []
    indentation = 0
    literal_below: int | None = None  # "::" seen at this indentation: deeper lines are code

    def close() -> None:
        if current:
            paragraphs.append(" ".join(current))
            current.clear()

    in_example = False
    for number, line in enumerate(lines):
        content = line.strip()
        here = len(line) - len(line.lstrip())
        next_line = lines[number + 1].strip() if number + 1 < len(lines) else ""
        if not content:
            close()
            in_example = False
            continue
        if literal_below is not None and here > literal_below:
            continue
        literal_below = None
        in_example |= _EXAMPLE.match(content) is not None
        is_heading = _HEADING.match(content) or (_HEADING.match(next_line) and not current)
        if in_example or is_heading or _SIGNATURE.match(content):
            close()
            continue
        bullet = _BULLET.match(content)
        if bullet:
            close()
            here += bullet.end()
            content = content[bullet.end() :]
        elif here != indentation:
            close()
        indentation = here
        current.append(content)
        if content.endswith("::"):
            literal_below = here - (bullet.end() if bullet else 0)
            close()
    close()
    return paragraphs


def _strip_markup(paragraph: str) -> str:
    for pattern, replacement in _MARKUP:
        paragraph = pattern.sub(replacement, paragraph)
    return paragraph.strip()


def reads_as_english(sentence: str) -> bool:
    """Returns whether a text is an English sentence, not a heading, a fragment or code.

    At least 70% of its tokens must be words, and 10% function words such as "the" or "is".
    """
    if not (_START.match(sentence) and _END.search(sentence)):
        return False
    tokens = sentence.split()
    if not 3 <= len(tokens) <= 120 or max(map(len, tokens)) > 40:
        return False
    words = [token for token in tokens if _WORD.fullmatch(token.strip(".,;:!?()\"'“”"))]
    function_words = [word for word in words if word.lower().strip(",.;:()") in _FUNCTION_WORDS]
    symbols = sum(not (c.isalnum() or c in " .,;:!?()\"'’“”-_/") for c in sentence)
    return (
        len(words) >= 0.7 * len(tokens)
        and len(function_words) >= max(1, 0.1 * len(tokens))
        and symbols <= 0.03 * len(sentence)
        and sentence.count('"') % 2 == 0
        and sentence.count("(") == sentence.count(")")
    )
