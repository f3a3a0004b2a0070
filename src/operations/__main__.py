"""`python -m operations`: the command line where its script is not on the path."""

from _operations_entry import program

program()
