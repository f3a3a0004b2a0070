"""`python -m operations`: the command line, also if its script is not in PATH."""

from _operations_entry import program

program()
