"""Documents of every dialect, read into one form."""
