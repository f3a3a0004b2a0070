"""The pictures of the documentation, drawn as SVG for light and dark pages: `python -m bench.pictures`."""
