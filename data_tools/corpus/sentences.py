"""Splits running text into sentences with the rules of the package sentencex.

A full stop ends a sentence unless it belongs to an abbreviation of the language, a number or an
initial. Chinese and Japanese full stops need no white space after them. A Japanese quotation is
split from the clause that follows it: 「行きますか？」 と彼は聞いた。

tensorflow-text's StateBasedSentenceBreaker was tested and rejected: it splits after "Mr.", inside
"e.g." and inside "3.14", and moves a closing quote to the start of the next sentence.
"""

import sentencex

from keras_bert.common.errors import InputError

# ISO 639-1 codes, to catch typing errors. For an unknown language, the package silently uses the
# rules of English, which are right for most languages.
_CODES = """
aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da
de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz
ia id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln
lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi
pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti
tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
LANGUAGES = frozenset(_CODES.split())

# The package's run time is quadratic in the length of the text after an unclosed quote, so long
# text is passed in parts of this many characters. A longer sentence is split.
_MAX_SEGMENT_LENGTH = 1 << 15


def check_language(language: str) -> None:
    """Raises an `InputError` if `language` is not an ISO 639-1 code."""
    if language not in LANGUAGES:
        raise InputError(
            f"--language={language}: expected a two-letter ISO 639-1 code, for example en, de or zh"
        )


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Splits a paragraph into non-empty sentences without surrounding white space.

    Line ends in `text` count as spaces. `language` is an ISO 639-1 code.
    """
    text = text.replace("\n", " ")
    if len(text) <= _MAX_SEGMENT_LENGTH:
        found = sentencex.segment(language, text)
    else:
        found = _split_long(text, language)
    return [sentence for sentence in map(str.strip, found) if sentence]


def _split_long(text: str, language: str) -> list[str]:
    sentences: list[str] = []
    rest = ""
    for start in range(0, len(text), _MAX_SEGMENT_LENGTH):
        sentences += sentencex.segment(language, rest + text[start : start + _MAX_SEGMENT_LENGTH])
        rest = sentences.pop()  # continues in the next part
        if len(rest) >= _MAX_SEGMENT_LENGTH:
            at = rest.rfind(" ", 1) + 1 or len(rest)
            sentences.append(rest[:at])
            rest = rest[at:]
    return [*sentences, rest]
