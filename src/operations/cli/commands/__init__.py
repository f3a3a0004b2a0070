"""The commands by name. Each command is a module, imported when the command runs (`arguments.find_command`)."""

from __future__ import annotations

GROUPS: dict[str, dict[str, str]] = {
    "Start": {
        "init": "create operations.toml and a first operation",
        "add": "add a source: an MCP server, an OpenAPI document or Python code",
        "rm": "remove sources",
        "edit": "open the configuration in an editor, then check it",
        "trust": "allow a configuration to run its commands and code",
        "doctor": "check every source and report what to fix",
    },
    "Find": {
        "ls": "list operations",
        "search": "search operations by words",
        "show": "show an operation: fields, schemas, example code",
    },
    "Call": {
        "call": "call an operation and print its data",
        "sub": "print the events of a subscription, one per line",
        "map": "call an operation for each line of input, in parallel",
        "jobs": "submit calls that run later, and fetch their results",
    },
    "Run": {
        "serve": "serve the operations over HTTP, MCP and WebSocket",
        "keys": "manage the API keys that 'ops serve' accepts",
        "hub": "run a hub, which routes calls between processes",
        "spoke": "serve the operations through a hub; no other process can serve them",
        "worker": "serve the operations on a hub, Redis or NATS, shared with other workers",
        "install": "register the operations as an MCP server of an editor",
    },
    "More": {
        "stubs": "write type stubs for env: operations_env/",
        "scan": "list the operations in Python code, and what was skipped",
        "config": "print the configuration, its schema or its path",
        "completion": "print the completion script for bash, zsh or fish",
        "version": "print the version",
    },
}
SUMMARIES = {name: summary for group in GROUPS.values() for name, summary in group.items()}
