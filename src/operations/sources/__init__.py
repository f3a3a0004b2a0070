"""Sources of operations: Python modules, OpenAPI documents, MCP servers, and other packages' entry points."""
