"""The command line: `operations`, or `ops` for short. No other layer depends on it."""
