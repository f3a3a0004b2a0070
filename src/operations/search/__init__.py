"""Search: operations ranked by relevance to a query, independently of registries and sources."""

from operations.search.ranking import SearchDocument, SearchIndex

__all__ = ["SearchDocument", "SearchIndex"]
