"""The tables of `[[interceptors]]` as structs, from which their schema is made."""

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

    operations: Annotated[Patterns, Meta(description="The ids it is for, as patterns; every id if not said.")] = ("*",)
    exclude: Annotated[Patterns, Meta(description="The ids it is not for, as patterns.")] = ()
    types: Annotated[Types, Meta(description="Types of operations that it applies to; all by default.")] = ()


class LogSettings(InterceptorSettings, frozen=True, kw_only=True):
    """One log line for each call."""

    use: Annotated[Literal["log"], Meta(description="Which interceptor it is.")]
    level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"], Meta(description="The level of calls that succeed.")
    ] = "INFO"
    slow: Annotated[_NotNegative | None, Meta(description="Minimum duration in seconds of logged successes.")] = None
    input: Annotated[bool, Meta(description="Log the input, without members whose names suggest secrets.")] = False


class RetryCallsSettings(InterceptorSettings, frozen=True, kw_only=True):
    """Retries of queries that fail with a transient error."""

    use: Annotated[Literal["retry"], Meta(description="Which interceptor it is.")]
    attempts: Annotated[AtLeastOne, Meta(description="Maximum number of attempts, the first included.")] = 3
    first_delay: Annotated[_NotNegative, Meta(description="Seconds before the second attempt.")] = 0.1
    longest_delay: Annotated[_NotNegative, Meta(description="The longest wait in seconds.")] = 5.0
    budget: Annotated[_NotNegative, Meta(description="Repeated calls for each first call, on average.")] = 0.2
    reserve: Annotated[Count, Meta(description="Number of repeated calls that are allowed beyond the budget.")] = 10
    statuses: Annotated[tuple[int, ...], Meta(description="HTTP statuses that are retried.")] = (429, 502, 503, 504)
    unexecuted_mutations: Annotated[
        bool, Meta(description="Call a mutation again if its error has `executed: no`.")
    ] = False


class RateLimitSettings(InterceptorSettings, frozen=True, kw_only=True):
    """Limit on the rate of calls."""

    use: Annotated[Literal["rate-limit"], Meta(description="Which interceptor it is.")]
    rate: Annotated[_Positive, Meta(description="Calls in `per` seconds.")]
    per: Annotated[Seconds, Meta(description="Period of `rate` in seconds.")] = 1.0
    burst: Annotated[AtLeastOne | None, Meta(description="Calls at once; `rate` if not said.")] = None
    max_wait: Annotated[_NotNegative, Meta(description="Seconds that a call waits rather than being refused.")] = 0.0
    by: Annotated[By, Meta(description="What is limited separately.")] = ("identity",)
    max_keys: Annotated[AtLeastOne, Meta(description="Number of callers whose rate is kept.")] = 100_000


class ConcurrencyLimitSettings(InterceptorSettings, frozen=True, kw_only=True):
    """Limit on the number of concurrent calls."""

    use: Annotated[Literal["concurrency-limit"], Meta(description="Which interceptor it is.")]
    limit: Annotated[AtLeastOne, Meta(description="Calls at a time.")]
    queue: Annotated[Count, Meta(description="Calls that wait for a place.")] = 0
    max_wait: Annotated[_NotNegative | None, Meta(description="Seconds that a call waits at most.")] = None
    by: Annotated[By, Meta(description="What is limited separately; nothing if not said.")] = ()


class CircuitBreakerSettings(InterceptorSettings, frozen=True, kw_only=True):
    """Circuit breaker: refuses calls of a failing upstream for a time."""

    use: Annotated[Literal["circuit-breaker"], Meta(description="Which interceptor it is.")]
    failure_rate: Annotated[_Share, Meta(description="The share of failed calls at which it opens.")] = 0.5
    minimum: Annotated[AtLeastOne, Meta(description="Calls within the window before it opens.")] = 10
    window: Annotated[Seconds, Meta(description="Seconds over which calls are counted.")] = 10.0
    open_seconds: Annotated[Seconds, Meta(description="Seconds for which calls are refused.")] = 30.0
    probes: Annotated[AtLeastOne, Meta(description="Concurrent calls in the half-open state.")] = 1
    by: Annotated[By, Meta(description="What each circuit breaker covers.")] = ("namespace",)


class CacheSettings(InterceptorSettings, frozen=True, kw_only=True):
    """Cache of the results of queries."""

    use: Annotated[Literal["cache"], Meta(description="Which interceptor it is.")]
    ttl: Annotated[Seconds, Meta(description="Seconds for which a result is kept.")]
    share: Annotated[
        Literal["identity", "rights", "everyone"],
        Meta(description="Who gets a kept result."),
    ] = "identity"
    max_entries: Annotated[AtLeastOne, Meta(description="Results that are kept.")] = 10_000
    max_bytes: Annotated[AtLeastOne, Meta(description="Bytes of all kept results.")] = 64 * 1024 * 1024


class ResponseLimitSettings(InterceptorSettings, frozen=True, kw_only=True):
    """Limit on the size of results."""

    use: Annotated[Literal["response-limit"], Meta(description="Which interceptor it is.")]
    max_bytes: Annotated[AtLeastOne, Meta(description="The largest result, or item of a stream, in bytes of JSON.")]
    stream_bytes: Annotated[AtLeastOne | None, Meta(description="The bytes of all items of a stream.")] = None


class RedactSettings(InterceptorSettings, frozen=True, kw_only=True):
    """Redaction of secrets in results and errors."""

    use: Annotated[Literal["redact"], Meta(description="Which interceptor it is.")]
    fields: Annotated[
        Patterns | None,
        Meta(description="Names whose values are replaced, as patterns."),
    ] = None
    patterns: Annotated[Patterns, Meta(description="Regular expressions of texts that are replaced.")] = ()


class ApprovalSettings(InterceptorSettings, frozen=True, kw_only=True):
    """Calls that need approval; refused if no one can be asked."""

    use: Annotated[Literal["approval"], Meta(description="Which interceptor it is.")]
    policy: Annotated[Literal["ask", "deny"], Meta(description="Ask before each call, or refuse every call.")] = "ask"
    timeout: Annotated[Seconds, Meta(description="Seconds after which a missing answer is a refusal.")] = 300.0


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
