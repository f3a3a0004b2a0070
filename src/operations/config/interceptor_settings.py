"""Structs for the tables of `[[interceptors]]`; the JSON Schema of the tables is generated from them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from operations.config.settings import AtLeastOne, Count, Seconds, Settings

_NotNegative = Annotated[float, Meta(ge=0)]
_Positive = Annotated[float, Meta(gt=0)]
_Share = Annotated[float, Meta(gt=0, le=1)]
By = tuple[Literal["identity", "operation", "namespace"], ...]
Types = tuple[Literal["query", "mutation", "subscription"], ...]
Patterns = tuple[str, ...]


class InterceptorSettings(Settings, frozen=True, kw_only=True):
    """Settings of every interceptor: the operations that it applies to."""

    operations: Annotated[
        Patterns, Meta(description="Patterns of operation ids that the interceptor applies to; all by default.")
    ] = ("*",)
    exclude: Annotated[
        Patterns, Meta(description="Patterns of operation ids that the interceptor does not apply to.")
    ] = ()
    types: Annotated[
        Types, Meta(description="Types of operations that the interceptor applies to; all by default.")
    ] = ()


class LogSettings(InterceptorSettings, frozen=True, kw_only=True):
    """One log line for each call."""

    use: Annotated[Literal["log"], Meta(description="Kind of interceptor.")]
    level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"], Meta(description="Log level of calls that succeed.")
    ] = "INFO"
    slow: Annotated[
        _NotNegative | None, Meta(description="Minimum duration in seconds of successful calls that are logged.")
    ] = None
    input: Annotated[
        bool, Meta(description="Log the input; values of properties whose names suggest secrets are replaced.")
    ] = False


class RetryCallsSettings(InterceptorSettings, frozen=True, kw_only=True):
    """Retries of queries that fail with a transient error."""

    use: Annotated[Literal["retry"], Meta(description="Kind of interceptor.")]
    attempts: Annotated[AtLeastOne, Meta(description="Maximum number of attempts, the first included.")] = 3
    first_delay: Annotated[_NotNegative, Meta(description="Seconds before the second attempt.")] = 0.1
    longest_delay: Annotated[_NotNegative, Meta(description="Maximum delay in seconds.")] = 5.0
    budget: Annotated[_NotNegative, Meta(description="Number of retries that each call adds to the retry budget.")] = (
        0.2
    )
    reserve: Annotated[Count, Meta(description="Initial and maximum number of retries in the retry budget.")] = 10
    statuses: Annotated[tuple[int, ...], Meta(description="HTTP statuses that are retried.")] = (429, 502, 503, 504)
    unexecuted_mutations: Annotated[
        bool, Meta(description="Call a mutation again if its error has `executed: no`.")
    ] = False


class RateLimitSettings(InterceptorSettings, frozen=True, kw_only=True):
    """Limit on the rate of calls."""

    use: Annotated[Literal["rate-limit"], Meta(description="Kind of interceptor.")]
    rate: Annotated[_Positive, Meta(description="Number of calls in `per` seconds.")]
    per: Annotated[Seconds, Meta(description="Period of `rate` in seconds.")] = 1.0
    burst: Annotated[
        AtLeastOne | None,
        Meta(description="Maximum number of calls that may start at the same moment; by default `rate`."),
    ] = None
    max_wait: Annotated[
        _NotNegative, Meta(description="Maximum time in seconds that a call waits before it is refused.")
    ] = 0.0
    by: Annotated[By, Meta(description="Each combination of these values has its own limit.")] = ("identity",)
    max_keys: Annotated[AtLeastOne, Meta(description="Maximum number of combinations of `by` that are tracked.")] = (
        100_000
    )


class ConcurrencyLimitSettings(InterceptorSettings, frozen=True, kw_only=True):
    """Limit on the number of concurrent calls."""

    use: Annotated[Literal["concurrency-limit"], Meta(description="Kind of interceptor.")]
    limit: Annotated[AtLeastOne, Meta(description="Maximum number of concurrent calls.")]
    queue: Annotated[Count, Meta(description="Maximum number of calls that wait for a slot.")] = 0
    max_wait: Annotated[_NotNegative | None, Meta(description="Maximum time in seconds that a call waits.")] = None
    by: Annotated[
        By, Meta(description="Each combination of these values has its own limit; by default one limit for all calls.")
    ] = ()


class CircuitBreakerSettings(InterceptorSettings, frozen=True, kw_only=True):
    """Circuit breaker: refuses calls to a failing upstream for a time."""

    use: Annotated[Literal["circuit-breaker"], Meta(description="Kind of interceptor.")]
    failure_rate: Annotated[_Share, Meta(description="Share of failed calls (0 to 1) at which the breaker opens.")] = (
        0.5
    )
    minimum: Annotated[
        AtLeastOne, Meta(description="Minimum number of calls in the window before the circuit breaker can open.")
    ] = 10
    window: Annotated[Seconds, Meta(description="Length of the window in seconds.")] = 10.0
    open_seconds: Annotated[Seconds, Meta(description="Seconds for which an open breaker refuses calls.")] = 30.0
    probes: Annotated[AtLeastOne, Meta(description="Maximum number of concurrent calls in the half-open state.")] = 1
    by: Annotated[By, Meta(description="Each combination of these values has its own circuit breaker.")] = (
        "namespace",
    )


class CacheSettings(InterceptorSettings, frozen=True, kw_only=True):
    """Cache of the results of queries."""

    use: Annotated[Literal["cache"], Meta(description="Kind of interceptor.")]
    ttl: Annotated[Seconds, Meta(description="Seconds for which a result is cached.")]
    share: Annotated[
        Literal["identity", "rights", "everyone"],
        Meta(description="Callers that may get the same cached result."),
    ] = "identity"
    max_entries: Annotated[AtLeastOne, Meta(description="Maximum number of cached results.")] = 10_000
    max_bytes: Annotated[AtLeastOne, Meta(description="Maximum size of all cached results in bytes.")] = (
        64 * 1024 * 1024
    )


class ResponseLimitSettings(InterceptorSettings, frozen=True, kw_only=True):
    """Limit on the size of results."""

    use: Annotated[Literal["response-limit"], Meta(description="Kind of interceptor.")]
    max_bytes: Annotated[
        AtLeastOne, Meta(description="Maximum size of a result, or of an item of a stream, in bytes of JSON.")
    ]
    stream_bytes: Annotated[AtLeastOne | None, Meta(description="Maximum size of all items of a stream in bytes.")] = (
        None
    )


class RedactSettings(InterceptorSettings, frozen=True, kw_only=True):
    """Redaction of secrets in results and errors."""

    use: Annotated[Literal["redact"], Meta(description="Kind of interceptor.")]
    fields: Annotated[
        Patterns | None,
        Meta(description="Patterns of the names of properties whose values are replaced."),
    ] = None
    patterns: Annotated[Patterns, Meta(description="Regular expressions; each match in a string is replaced.")] = ()


class ApprovalSettings(InterceptorSettings, frozen=True, kw_only=True):
    """Approval of calls; a call is refused if no one can be asked to approve it."""

    use: Annotated[Literal["approval"], Meta(description="Kind of interceptor.")]
    policy: Annotated[Literal["ask", "deny"], Meta(description="Ask before each call, or refuse every call.")] = "ask"
    timeout: Annotated[Seconds, Meta(description="Seconds to wait for an answer before the call is refused.")] = 300.0


AnyInterceptor = (
    LogSettings
    | RetryCallsSettings
    | RateLimitSettings
    | ConcurrencyLimitSettings
    | CircuitBreakerSettings
    | CacheSettings
    | ResponseLimitSettings
    | RedactSettings
    | ApprovalSettings
)
