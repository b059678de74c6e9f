"""Counts input of a corpus that is empty, malformed or too long, by kind (`KINDS`).

The counts are stored in the manifest and logged as warnings, so no input is dropped silently.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from absl import logging

FIRST_PLACES = 5

# kind: (singular, plural, how the input was handled)
KINDS = {
    "empty_files": ("file without text", "files without text", "skipped"),
    "empty_documents": ("empty document", "empty documents", "skipped"),
    "long_lines": (
        "over-long line",
        "over-long lines",
        "split at white space (JSON lines are skipped)",
    ),
    "long_documents": ("over-long document", "over-long documents", "split into several"),
    "undecodable_bytes": (
        "undecodable byte",
        "undecodable bytes",
        "replaced by U+FFFD, which the tokenizer drops",
    ),
    "lone_surrogates": (
        "half of a surrogate pair",
        "halves of surrogate pairs",
        "replaced by U+FFFD, which the tokenizer drops",
    ),
    "unknown_files": (
        "file with an unknown ending",
        "files with an unknown ending",
        "skipped",
    ),
    "hard_wrapped_files": (
        "file that looks like hard-wrapped text, not like one sentence per line",
        "files that look like hard-wrapped text, not like one sentence per line",
        "read as one sentence per line and one document per paragraph; for running text, use "
        "--input_format=prose, or gutenberg for books of Project Gutenberg",
    ),
    "malformed_lines": ("malformed line", "malformed lines", "skipped"),
    "unmarked_files": (
        "book without a start marker",
        "books without a start marker",
        "read as a whole",
    ),
}


class OddInput:
    """Counts of odd input by kind (`KINDS`), with the first places of each kind.

    `bad_lines` is a `units.BadUnits` for a part of a file, which `documents.read_texts` sets.
    """

    def __init__(self) -> None:
        self.bad_lines: Any = None
        self._counts: Counter[str] = Counter()
        self._files: Counter[str] = Counter()
        self._first: dict[str, list[dict[str, Any]]] = {}

    def add(self, kind: str, place: Mapping[str, Any], detail: str = "", times: int = 1) -> None:
        """Counts `times` occurrences of a kind (`KINDS`), and records the first places.

        `place` has the key "file", and possibly "line" (from 1) with "offset", its byte offset in
        the decompressed file, or "row" (from 1). `detail` describes the place if the kind alone is
        not specific enough.
        """
        self._counts[kind] += times
        self._files[kind] = 1
        places = self._first.setdefault(kind, [])
        if len(places) < FIRST_PLACES:
            places.append({**place} | ({"what": detail} if detail else {}))

    def merge(self, other: "OddInput | Mapping[str, Any]") -> None:
        """Adds the counts of other files, given as an `OddInput` or the result of `to_dict`."""
        for kind, entry in (other.to_dict() if isinstance(other, OddInput) else other).items():
            self._counts[kind] += entry["count"]
            self._files[kind] += entry["files"]
            places = self._first.setdefault(kind, [])
            places += entry["first"][: FIRST_PLACES - len(places)]

    def __getitem__(self, kind: str) -> int:
        return self._counts[kind]

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Returns {kind: {count, files, first: [place]}} for the kinds found.

        A place is that of `add`, and has the detail as "what".
        """
        return {
            kind: {
                "count": self._counts[kind],
                "files": self._files[kind],
                "first": list(self._first[kind]),
            }
            for kind in KINDS
            if self._counts[kind]
        }

    def log(self) -> None:
        """Logs one warning per kind of odd input."""
        for kind, entry in self.to_dict().items():
            count, num_files, first = entry["count"], entry["files"], entry["first"][0]
            singular, plural, handling = KINDS[kind]
            files = f"{first['file']} and {num_files - 1} more" if num_files > 1 else first["file"]
            where = f" in {first['file']}" if num_files > 1 else ""
            if "line" in first:
                where += f" at line {first['line']}, byte offset {first['offset']}"
            elif "row" in first:
                where += f" at row {first['row']}"
            where += f" ({first['what']})" if "what" in first else ""
            logging.warning(
                "%s: %d %s%s: %s",
                files,
                count,
                singular if count == 1 else plural,
                where and f", the first{where}",
                handling,
            )
