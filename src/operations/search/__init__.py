"""Search: operations ranked by relevance to a query. It is independent of registries and sources."""

from operations.search.ranking import SearchDocument, SearchIndex

__all__ = ["SearchDocument", "SearchIndex"]
