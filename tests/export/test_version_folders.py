"""Version folders: which folders are versions, and the next number, for exports and server."""

from pathlib import Path

import pytest

from keras_bert.errors import InputError
from keras_bert.export.version_folders import (
    check_version,
    find_versions,
    next_version,
    version_number,
)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("0", 0), ("10", 10), ("007", 7), (str(2**63 - 1), 2**63 - 1)),
        *(("", None), ("-1", None), (" 1", None), ("²", None), ("٣", None), ("tmp", None)),
        *((str(2**63), None), ("9" * 50, None)),
    ],
)
def test_version_is_a_number_that_fits_in_int64(name: str, number: int | None):
    assert version_number(name) == number


def test_file_is_not_served_but_its_number_is_taken(tmp_path: Path):
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "saved_model.pb").touch()
    (tmp_path / "3").touch()
    assert find_versions(tmp_path, "saved_model.pb") == {2: tmp_path / "2"}
    assert next_version(tmp_path) == 4
    with pytest.raises(InputError, match=r"3 already exists; expected .*such as .*/4$"):
        check_version(tmp_path / "3")


@pytest.mark.parametrize("names", [["1", "01"], ["01", "1"]])
def test_shorter_of_two_names_of_a_version_is_used(tmp_path: Path, names: list[str]):
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "01" / "saved_model.pb").touch()
    assert find_versions(tmp_path) == {1: tmp_path / "1"}
    assert find_versions(tmp_path, "saved_model.pb") == {1: tmp_path / "01"}
    with pytest.raises(InputError, match=r"^export_dir=.*001: .*/1 already exists; .*/2$"):
        check_version(tmp_path / "001")


def test_unreadable_folder_is_reported_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def deny(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", deny)
    with pytest.raises(InputError, match=r"^export_dir=.*/1: Permission denied"):
        check_version(tmp_path / "1")
