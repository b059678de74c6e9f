"""The order in which workers read the input files."""

from data_tools.building.partition import largest_first


def test_the_largest_files_are_read_first_and_keep_their_numbers():
    inputs = [{"file": name, "bytes": size} for name, size in (("a", 3), ("b", 9), ("c", 3))]
    assert largest_first(inputs) == [(1, inputs[1]), (0, inputs[0]), (2, inputs[2])]
