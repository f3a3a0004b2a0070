"""The SDK's server behind our own path: every protocol version and method that the own path does not answer.

The only package of `serving` that imports the SDK; it is imported on first use.
"""
