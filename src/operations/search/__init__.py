"""Search: operations ranked by what they are about. It knows nothing of registries and sources."""

from operations.search.ranking import SearchDocument, SearchIndex

__all__ = ["SearchDocument", "SearchIndex"]
