"""The command-line programs: their flags and main functions."""
