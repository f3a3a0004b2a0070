"""`python -m operations.cli`: the command line where its script is not on the path."""

from operations.cli.main import program

program()
