"""Counts the bad units (lines or rows) of a file, and rejects a file with too many.

Such a file probably has another format than the one that it is read as.
"""

from typing import Any, NamedTuple, Protocol

from data_tools.corpus.odd_input import OddInput
from keras_bert.common.errors import InputError


class Unit(Protocol):
    """A line or a row of a file.

    Attributes:
        number: number of the line or the row, from 1.
    """

    number: int


class BadUnits(NamedTuple):
    """The number of bad units among those that were read, and a description of the first one."""

    num_bad: int
    num_units: int
    first: str

    def check(self, max_share: float, name: str) -> None:
        """Raises an `InputError` if more than `max_share` of the units, a plural name, are bad."""
        if self.num_bad > max_share * self.num_units:
            share = f"more than --max_bad_line_share={max_share:g} allows"
            if max_share:
                share = f"{self.num_bad} of {self.num_units} {name} are bad, {share}"
            raise InputError(f"{self.first}: {share}")


class Units:
    """The lines or the rows of one file.

    `max_bad_line_share` is the maximum fraction of undecodable or malformed ones. The attribute
    `odd` counts odd input. A subclass counts the units that it has read in `_num_units`.
    """

    name = "line"

    def __init__(self, path: str, max_bad_line_share: float):
        self.path, self.odd = path, OddInput()
        self._max_bad_line_share = max_bad_line_share
        self._num_units = self._num_bad = self._last_bad = 0
        self._first_bad = ""

    def place(self, unit: Any = None) -> dict[str, Any]:
        """Returns the place of a unit for `OddInput.add`; None is the file as a whole."""
        return {"file": self.path} | ({self.name: unit.number} if unit else {})

    def add_malformed(self, unit: Any, problem: str) -> None:
        """Counts a malformed unit; raises an `InputError` if `max_bad_line_share` is 0."""
        self.odd.add("malformed_lines", self.place(unit), problem)
        self._add_bad(unit.number, problem)

    def add_odd(self, kind: str, unit: Any = None, times: int = 1) -> None:
        """Counts odd input of a kind in `odd_input.KINDS`, by default in the file as a whole."""
        self.odd.add(kind, self.place(unit), times=times)

    def bad_units(self) -> BadUnits:
        """Returns the number of bad units; must be called after the last unit was read."""
        return BadUnits(self._num_bad, self._num_units, self._first_bad)

    def check_bad_units(self) -> None:
        """Raises an `InputError` if more than `max_bad_line_share` of all units were bad.

        Must be called after the last unit was read. The message describes the first bad unit.
        """
        self.bad_units().check(self._max_bad_line_share, f"{self.name}s")

    def _add_bad(self, number: int, problem: str) -> None:
        self._first_bad = self._first_bad or f"{self.path} {self.name} {number}: {problem}"
        self._num_bad += number != self._last_bad  # counts each unit once
        self._last_bad = number
        if not self._max_bad_line_share:
            self.check_bad_units()
