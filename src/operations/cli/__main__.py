"""`python -m operations.cli`: the command line where its script is not on the path."""

import sys

from operations.cli.main import main

sys.exit(main())
