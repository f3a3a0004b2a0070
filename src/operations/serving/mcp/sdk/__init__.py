"""The server of the MCP SDK: the protocol versions and methods that the fast path does not serve.

The only package of `serving` that imports the SDK. It is imported on first use.
"""
