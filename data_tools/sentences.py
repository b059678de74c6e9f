"""Splits running text into sentences.

In: a paragraph (str). Out: its sentences (list of str), nothing lost but the white space between.

A rule, not a model: a run of `.`, `!`, `?` or `…`, with the quotes and brackets that close on it,
ends a sentence when white space follows and the next word doesn't start in lower case; a full stop
doesn't when it belongs to an abbreviation ("Dr.", "e.g."), an initial ("J. Smith") or an acronym
("the U.S. Senate"). Chinese and Japanese stops need no white space after them.

tensorflow-text's StateBasedSentenceBreaker was measured and passed over: it cuts at "Mr.", inside
"e.g." and inside "3.14", and puts a closing quote at the start of the next sentence.
"""

import re

# Words that a full stop follows in the middle of a sentence. "etc.", "Inc." and the like end
# sentences about as often, so what follows decides for them; a capital then counts as a start.
_ABBREVIATIONS = """
    mr mrs ms messrs dr prof st rev hon gen col maj capt lt sgt cpl gov sen rep pres supt mt ft
    vs viz cf e.g i.e eg ie fig figs eq eqs sec chap ch vol vols pp op no nos art ed eds al ca
    approx incl resp jan feb mar apr aug sept oct nov dec mon tue wed thu fri sat sun
    bzw z.b d.h u.a
"""
# Words of their own without the full stop: only a number after it makes them abbreviations.
_BEFORE_NUMBERS = "no nos art op ed sec fig figs ch jan mar sat sun wed dec oct nov"
_ABBREVIATIONS, _BEFORE_NUMBERS = set(_ABBREVIATIONS.split()), set(_BEFORE_NUMBERS.split())
_SPACED_STOPS = ".!?…؟۔।॥"
_FULL_WIDTH_STOPS = "。！？｡．"
_CLOSERS = "\"'”’»›)\\]}"
_FULL_WIDTH_CLOSERS = "\"'”’」』）】》〉"
_OPENERS = "\"'“‘«‹„([{*_-—–"

_BOUNDARY = re.compile(
    rf"[{_FULL_WIDTH_STOPS}]+(?P<wide>[{_FULL_WIDTH_CLOSERS}]*)\s*"
    rf"|[{_SPACED_STOPS}]+[{_CLOSERS}]*(?P<space>\s+)"
)
# What carries on after a closing quote: commas, and the Japanese quoting particle.
_QUOTE_GOES_ON = re.compile(r"[、，,とっ]")
_LAST_WORD = re.compile(r"[\w.]+$")


def split_sentences(text: str) -> list[str]:
    """Splits a paragraph into sentences.

    Args:
        text: running text without paragraph breaks (line ends count as spaces).

    Returns:
        The sentences in order, stripped, none empty.
    """
    sentences = []
    start = 0
    for match in _BOUNDARY.finditer(text):
        if match.end() == len(text) or _ends_sentence(text, start, match):
            sentences.append(text[start : match.end()].strip())
            start = match.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _ends_sentence(text: str, start: int, match: re.Match) -> bool:
    following = text[match.end() : match.end() + 4].lstrip(_OPENERS)
    if match["space"] is None:
        return not (match["wide"] and _QUOTE_GOES_ON.match(following))
    if following[:1].islower():
        return False
    stops = match.group().rstrip()
    if not stops.startswith(".") or stops.startswith(".."):
        return True
    word = _LAST_WORD.search(text, max(start, match.start() - 40), match.start())
    if word is None or stops.strip(".") != "":  # "(see above.)" ends, whatever its last word
        return True
    word = word.group()
    if word.lower() in _ABBREVIATIONS:
        return word.lower() in _BEFORE_NUMBERS and not following[:1].isdigit()
    is_initial = len(word) == 1 and word.isupper() and word != "I"
    is_acronym = re.fullmatch(r"(\w\.)+\w", word) is not None
    return not (is_initial or is_acronym)
