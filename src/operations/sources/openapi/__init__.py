"""The OpenAPI source: each path and method of a document as an operation, called over HTTP."""

from operations.sources.openapi.config import (
    HTTPAuth,
    HTTPCallOptions,
    HTTPLimits,
    HTTPRetry,
    HTTPServiceConfig,
)
from operations.sources.openapi.documents import OpenAPIOperation, OpenAPIParameter, OpenAPISpec
from operations.sources.openapi.load import (
    APIOperations,
    HTTPServices,
    OpenAPIFS,
    from_openapi,
    from_openapi_file,
    from_openapi_url,
)
from operations.sources.openapi.pagination import Pagination, iterate_items, iterate_pages

__all__ = [
    "APIOperations",
    "HTTPAuth",
    "HTTPCallOptions",
    "HTTPLimits",
    "HTTPRetry",
    "HTTPServiceConfig",
    "HTTPServices",
    "OpenAPIFS",
    "OpenAPIOperation",
    "OpenAPIParameter",
    "OpenAPISpec",
    "Pagination",
    "from_openapi",
    "from_openapi_file",
    "from_openapi_url",
    "iterate_items",
    "iterate_pages",
]
