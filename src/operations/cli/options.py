"""Options that several commands share; declarations only, so that help and completion need nothing else."""

from __future__ import annotations

from operations.cli.arguments import Option, seconds, whole_number

TOKEN_VARIABLE = "OPERATIONS_TOKEN"
TRANSPORT_URLS = "ws://host:port/, redis://host:port or nats://host:port"

RESULT_OPTIONS = (
    Option("--envelope", "the whole envelope: data and meta", "-e"),
    Option("--meta", "the meta alone"),
    Option("--jq", "run the result through a jq program", value="PROGRAM"),
    Option("--raw", "texts without quotes; --json keeps them", "-r"),
)
TRANSPORT_OPTIONS = (
    Option("--url", f"over a bus: a transport of the configuration, or {TRANSPORT_URLS}", "-u", value="URL"),
    Option("--token-file", f"the file that holds the token; else {TOKEN_VARIABLE}", value="FILE", completes="file"),
)
LISTING_OPTIONS = (
    Option("--refresh", "open every source again; else only those whose files changed", "-R"),
    Option("--cached", "never open a source, even where the cache may be old"),
    *TRANSPORT_OPTIONS,
)
LOAD_OPTIONS = (
    Option("--concurrency", "how many calls at a time", value="NUMBER", convert=whole_number, default=64),
    Option("--grace", "how long running calls may take at the end", value="SECONDS", convert=seconds, default=30.0),
)
SERVING_OPTIONS = (*TRANSPORT_OPTIONS, *LOAD_OPTIONS)
