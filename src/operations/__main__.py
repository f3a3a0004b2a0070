"""Runs the command line with `python -m operations`, even if the `ops` script is not in PATH."""

from _operations_entry import program

program()
