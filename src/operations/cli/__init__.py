"""The command line: `operations`, short `ops`. Every other layer may be used without it."""
