"""Checks that texts and names use one word for one thing, the word that the field uses.

    python .ci/check_words.py [FILE ...]

Without files, it checks all text files that git tracks. It prints each word that has a better one
as `file:line: 'word'; write ...` and exits with 1 if there are any.
"""

import re
import subprocess
import sys
from pathlib import Path

# (what not to write, as a regular expression between word boundaries; what to write)
WORDS = [
    (r"pieces?", "token or subword (of text), part or chunk (of anything else)"),
    (r"cuts?|cutting", "truncate or split"),
    (r"(go|goes|going|gone|went)[ _]on", "continue or resume"),
    (r"(passed|passing)[ _]over", "skip or ignore"),
    (r"(leave|leaves|left|leaving)[ _]out", "skip, ignore or omit"),
    (r"tells?|told|says?|said", "report, log, print, return or state"),
    (r"(end|ends)[ _]in[ _]one[ _]line|refus(e|es|ed|al|ing)", "fail or reject"),
    (r"mend(s|ed|ing)?", "fix"),
    (r"anew|fresh|freshly", "new, newly initialized or again"),
    (r"has[ _]no[ _]place[ _](for|in)", "not found in"),
    (r"(is|are)[ _]to[ _]be", "must be"),
    (r"steps[ _]in[ _]all", "the number of steps in total"),
    (r"learnt|spelt", "learned, spelled"),
    (r"strangers?", "unlisted or unexpected"),
]
# Where a word is right: text about WordPiece, former names, an example, a method, a socket's error.
ALLOWED = re.compile(
    r"word[ -]?pieces?|fresh clone|--label_all_pieces|`pieces` and `piece_ids`"
    r"|`next_piece`|The company said|golden\[\"pieces\"\]|\.tell\(|connection refused|\.\*refused",
    re.IGNORECASE,
)
SUFFIXES = {".py", ".md", ".toml", ".html", ".js", ".css", ".cfg", ".ipynb", ".sh", ".yml"}
# The texts of tests, and the list of words itself.
EXCLUDED = re.compile(
    r"tests/golden/|tests/data_tools/test_(corpus|documents|formats|sentences|python_corpus)|check_words\.py"
)
# Letters end a word; "_" does not belong to it, so that names are checked like text.
_CHECKS = [
    (re.compile(rf"(?<![A-Za-z])({words})(?![A-Za-z])", re.IGNORECASE), instead)
    for words, instead in WORDS
]


def find_words(path: Path) -> list[str]:
    """Returns a line for each word in a file that has a better one."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.lstrip().startswith('"image/png":'):  # A plot in a notebook, in base 64.
            continue
        text = ALLOWED.sub("", line)
        for pattern, instead in _CHECKS:
            for match in pattern.finditer(text):
                found.append(
                    f"{path}:{number}: {match[0]!r}; write {instead}: {line.strip()[:110]}"
                )
    return found


def main() -> None:
    """Checks the files on the command line, or all that git tracks."""
    names = sys.argv[1:]
    if not names:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], check=True, capture_output=True, text=True
        )
        names = listed.stdout.split("\0")
    paths = [Path(name) for name in names if not EXCLUDED.search(name)]
    found = [
        line
        for path in paths
        if path.suffix in SUFFIXES and path.is_file()
        for line in find_words(path)
    ]
    for line in found:
        print(line)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
