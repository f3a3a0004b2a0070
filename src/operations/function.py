"""@operation: a typed Python function becomes an Operation, its schemas read off its signature."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from typing import Any, Generic, ParamSpec, TypeVar, overload

import msgspec

from operations.context import OperationContext
from operations.docstrings import read_docstring
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.schema import (
    UNKNOWN,
    Field,
    Found,
    Policy,
    Schema,
    TypeCodec,
    codec_for,
    jsonable,
    misfit,
    record_codec,
)
from operations.spec import OPEN, AccessControl, Operation, OperationSpec, OperationType, SchemaLike

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Returned = TypeVar("Returned", covariant=True)

Load = Callable[[Any], dict[str, Any]]

_STREAMS = (AsyncGenerator, AsyncIterator, AsyncIterable)

NAMESPACE_VARIABLE = "__operations_namespace__"
"""A module may name the namespace of its functions in a variable of this name; else it is the module's own name."""


class FunctionOperation(Operation[R_co], Generic[P, R_co, Returned], frozen=True, kw_only=True):
    """An Operation made of a function, which can still be called directly as the function it was."""

    function: Callable[P, Returned]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Returned:
        """Call the function itself: no validation, no envelope."""
        return self.function(*args, **kwargs)

    @property
    def __wrapped__(self) -> Callable[P, Returned]:
        return self.function

    @property
    def __name__(self) -> str:
        return self.function.__name__


class _Decorate(typing.Protocol):
    """What `operation(...)` returns: a decorator that keeps the function's types."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, ResponseEnvelope[R]]], /
    ) -> FunctionOperation[P, R, Coroutine[Any, Any, ResponseEnvelope[R]]]: ...
    @overload
    def __call__(
        self, function: Callable[P, AsyncIterator[ResponseEnvelope[R]]], /
    ) -> FunctionOperation[P, R, AsyncIterator[ResponseEnvelope[R]]]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> FunctionOperation[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, AsyncIterator[R]], /) -> FunctionOperation[P, R, AsyncIterator[R]]: ...
    @overload
    def __call__(
        self, function: Callable[P, ResponseEnvelope[R]], /
    ) -> FunctionOperation[P, R, ResponseEnvelope[R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> FunctionOperation[P, R, R]: ...


class _Options(typing.TypedDict, total=False):
    """What can be said of an operation beside its function."""

    id: str
    namespace: str
    name: str
    type: OperationType | str
    version: str
    description: str
    title: str
    tags: Sequence[str]
    annotations: Mapping[str, Any]
    access_control: AccessControl
    error_schemas: Mapping[str, SchemaLike]
    output_policy: Policy
    durable: bool
    inline: bool


@overload
def operation(
    function: Callable[P, Coroutine[Any, Any, ResponseEnvelope[R]]], /
) -> FunctionOperation[P, R, Coroutine[Any, Any, ResponseEnvelope[R]]]: ...
@overload
def operation(
    function: Callable[P, AsyncIterator[ResponseEnvelope[R]]], /
) -> FunctionOperation[P, R, AsyncIterator[ResponseEnvelope[R]]]: ...
@overload
def operation(function: Callable[P, Coroutine[Any, Any, R]], /) -> FunctionOperation[P, R, Coroutine[Any, Any, R]]: ...
@overload
def operation(function: Callable[P, AsyncIterator[R]], /) -> FunctionOperation[P, R, AsyncIterator[R]]: ...
@overload
def operation(function: Callable[P, ResponseEnvelope[R]], /) -> FunctionOperation[P, R, ResponseEnvelope[R]]: ...
@overload
def operation(function: Callable[P, R], /) -> FunctionOperation[P, R, R]: ...
@overload
def operation(operation_id: str | None = None, /, **options: typing.Unpack[_Options]) -> _Decorate: ...
def operation(function: Callable[..., Any] | str | None = None, /, **options: Any) -> Any:
    """Turn a typed function into an Operation, as `@operation`, `@operation("namespace.name")` or `@operation(...)`.

    The input schema comes from the parameters, the output schema from the return type, descriptions from the
    docstring, and the id from module and name unless `id`, `namespace` or `name` say otherwise. An async generator is
    a subscription; anything else is a mutation unless `type` says `"query"`, which allows it to be retried. A plain
    `def` runs in a worker thread unless `inline=True`.
    """
    # Names of the place where the function is defined, for annotations that are text.
    scope = sys._getframe(1).f_locals
    if isinstance(function, str):
        options["id"] = function
    elif function is not None:
        return _make(function, scope, **options)
    return lambda decorated: _make(decorated, scope, **options)


class _Signature(msgspec.Struct, frozen=True):
    """What the signature of a function says that matters here."""

    record: TypeCodec[dict[str, Any]]
    output: TypeCodec[Any] | None
    positional: tuple[tuple[str, Any], ...]
    contexts: tuple[str, ...]
    streams: bool


def _make(
    function: Callable[..., Any],
    scope: Mapping[str, Any],
    *,
    id: str | None = None,
    namespace: str | None = None,
    name: str | None = None,
    type: OperationType | str | None = None,
    description: str | None = None,
    access_control: AccessControl | None = None,
    inline: bool = False,
    **declared: Any,
) -> FunctionOperation[..., Any, Any]:
    documentation = read_docstring(inspect.getdoc(function))
    signature = _read_signature(function, scope, documentation.parameters)
    if id is not None:
        if "." not in id or namespace is not None or name is not None:
            raise TypeError(f"id={id!r}: an id is 'namespace.name', and stands in place of namespace= and name=")
        namespace, _, name = id.rpartition(".")
    spec = OperationSpec(
        namespace=namespace or _module_namespace(function),
        name=name or _name(function),
        type=_operation_type(function, signature, type),  # type: ignore[arg-type]  # made the member there
        description=documentation.description if description is None else description,
        input_schema=signature.record.schema,
        output_schema=UNKNOWN if signature.output is None else signature.output.schema,
        access_control=access_control or OPEN,
        **declared,
    )
    call = _caller(function, signature, spec.id)
    # A type whose own values are JSON already may still be declared of a handler that returns something else.
    output = (
        {} if signature.output is None else {"dump": signature.output.dump or jsonable, "load": signature.output.load}
    )
    load = signature.record.load
    return FunctionOperation(
        spec=spec,
        misfits=None if load is None else _misfits(load),
        function=function,
        handler=None if signature.streams else call,
        stream=call if signature.streams else None,
        threaded=not (signature.streams or inline or inspect.iscoroutinefunction(function)),
        wants_context=bool(signature.contexts),
        **output,
    )


def _caller(
    function: Callable[..., Any], signature: _Signature, operation_id: str
) -> Callable[[Any, OperationContext], Any]:
    """The function as a handler: input mapped to arguments, specialised so that the plain case costs one call."""
    load, contexts, positional = signature.record.load, signature.contexts, signature.positional
    if load is not None:
        load = _explained(load, operation_id, signature.record.schema)
    if not contexts and not positional:
        if load is None:
            return lambda input, context: function(**input)
        return lambda input, context: function(**load(input))

    def call(input: Any, context: OperationContext) -> Any:
        # A copy: what `load` gives may be the caller's own mapping.
        arguments = dict(input if load is None else load(input))
        for name in contexts:
            arguments[name] = context
        leading = [arguments.pop(name, default) for name, default in positional]
        return function(*leading, **arguments)

    return call


def _explained(load: Load, operation_id: str, schema: Schema) -> Load:
    """`load` with an error that names the operation, as the errors of its schema do."""

    def explained(input: Any) -> dict[str, Any]:
        try:
            return load(input)
        except CallError as error:
            found = _found(error)
            if found is None:
                raise
            # The cause of such an error quotes the value, which may be a secret.
            raise misfit(schema.errors(input, found), f"invalid input for {operation_id}") from None

    return explained


def _misfits(load: Load) -> Callable[[Any], Sequence[Found]]:
    """What the types of the parameters find wrong with an input that their schema refuses already."""

    def misfits(input: Any) -> Sequence[Found]:
        try:
            if isinstance(input, dict):
                load(input)
        except CallError as error:
            return _found(error) or ()
        except Exception:  # noqa: BLE001  # a type's own code, on a value it need not expect: the schema's word stands
            return ()
        return ()

    return misfits


def _found(error: CallError) -> list[Found] | None:
    """What a loader found; None for an error that the user's own code raised."""
    details = error.details
    if error.code is not ErrorCode.VALIDATION_ERROR or not isinstance(details, dict):
        return None
    try:
        return [(item["path"], item["message"]) for item in details["errors"]]
    except (KeyError, TypeError):
        return None


def _read_signature(
    function: Callable[..., Any], scope: Mapping[str, Any], documented: Mapping[str, str]
) -> _Signature:
    hints = _type_hints(function, scope)
    name = _name(function)
    fields: list[Field] = []
    positional: list[tuple[str, Any]] = []
    contexts: list[str] = []
    extra: Any = None
    for parameter in inspect.signature(function).parameters.values():
        annotation = hints.get(parameter.name, Any)
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise TypeError(f"{name}: *{parameter.name} has no name to be given by; use a list")
        if parameter.name in ("self", "cls") and parameter.name not in hints:
            raise TypeError(f"{name}: decorate a bound method, operation(instance.{name}), not one in a class body")
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = annotation
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append((parameter.name, parameter.default))
        if _is_context(annotation):
            contexts.append(parameter.name)
            continue
        required = parameter.default is parameter.empty
        fields.append(
            Field(
                name=parameter.name,
                type=annotation,
                required=required,
                default=msgspec.UNSET if required else parameter.default,
                description=documented.get(parameter.name, ""),
            )
        )
    returned, streams = _read_return(function, hints)
    output = None if returned is msgspec.UNSET else codec_for(returned)
    return _Signature(record_codec(fields, extra=extra), output, tuple(positional), tuple(contexts), streams)


def _type_hints(function: Callable[..., Any], scope: Mapping[str, Any]) -> dict[str, Any]:
    target = inspect.unwrap(function.func if isinstance(function, functools.partial) else function)
    if not inspect.isroutine(target) and not isinstance(target, type):
        target = type(target).__call__
    try:
        return typing.get_type_hints(target, localns=dict(scope), include_extras=True)
    except NameError as error:
        message = f"{_name(function)}: an annotation names {error.name!r}, which is not defined where it is used"
        raise TypeError(message) from None


def _read_return(function: Callable[..., Any], hints: Mapping[str, Any]) -> tuple[Any, bool]:
    """The type of `data` (UNSET where the function does not say) and whether the function streams it."""
    streams = inspect.isasyncgenfunction(function)
    if inspect.isgeneratorfunction(function):
        raise TypeError(f"{_name(function)}: a subscription is an async generator (`async def` with `yield`)")
    if "return" not in hints:
        return msgspec.UNSET, streams
    returned = hints["return"]
    origin = typing.get_origin(returned) or returned
    if origin in _STREAMS and not inspect.iscoroutinefunction(function):
        streams = True
        returned = (typing.get_args(returned) or (msgspec.UNSET,))[0]
        origin = typing.get_origin(returned) or returned
    if origin is ResponseEnvelope:
        returned = (typing.get_args(returned) or (msgspec.UNSET,))[0]
    return (msgspec.UNSET if isinstance(returned, TypeVar) else returned), streams


def _name(function: Callable[..., Any]) -> str:
    inner = function.func if isinstance(function, functools.partial) else function
    return getattr(inner, "__name__", None) or type(inner).__name__


def _is_context(annotation: Any) -> bool:
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return OperationContext in typing.get_args(annotation)
    return annotation is OperationContext


def _operation_type(
    function: Callable[..., Any], signature: _Signature, declared: OperationType | str | None
) -> OperationType | str:
    if declared is None:
        return OperationType.SUBSCRIPTION if signature.streams else OperationType.MUTATION
    if signature.streams is not (declared == OperationType.SUBSCRIPTION):
        kind = "an async generator" if signature.streams else "no async generator"
        raise TypeError(f"{_name(function)} is {kind}, so its type cannot be {declared!s}")
    return declared


def _module_namespace(function: Callable[..., Any]) -> str:
    module = function.__module__
    stated = getattr(sys.modules.get(module), NAMESPACE_VARIABLE, None)
    if isinstance(stated, str):
        return stated
    return "main" if module == "__main__" else module
