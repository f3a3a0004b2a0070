"""@operation: converts a typed Python function to an Operation, with schemas from its signature."""

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
from operations.envelope import Event, ResponseEnvelope, may_be_envelope
from operations.errors import CallError, ErrorCode
from operations.schema import (
    UNKNOWN,
    Field,
    Found,
    Policy,
    RecordCodec,
    TypeCodec,
    codec_for,
    jsonable,
    record_codec,
    validation_error,
)
from operations.spec import OPEN, AccessControl, Operation, OperationSpec, OperationType, SchemaLike

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Returned = TypeVar("Returned", covariant=True)

Load = Callable[[Any], dict[str, Any]]

_STREAMS = (AsyncGenerator, AsyncIterator, AsyncIterable)

NAMESPACE_VARIABLE = "__operations_namespace__"
"""Name of the module variable with the namespace of the module's functions. Without it, the module's name is used."""


class FunctionOperation(Operation[R_co], Generic[P, R_co, Returned], frozen=True, kw_only=True):
    """An Operation made from a function. Calling the Operation calls the function directly."""

    function: Callable[P, Returned]
    contexts: tuple[str, ...] = ()
    """The parameters that receive the context."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Returned:
        """Call the function directly: no validation, no envelope."""
        return self.function(*args, **kwargs)

    @property
    def __wrapped__(self) -> Callable[P, Returned]:
        return self.function

    @property
    def __name__(self) -> str:
        return self.function.__name__

    def bind(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Convert arguments of the function to the input of the operation; `args` and `kwargs` contain no context."""
        parameters = inspect.signature(self.function).parameters
        given = [name for name in parameters if name not in self.contexts]
        if len(args) > len(given):
            raise self._invalid_arguments(f"takes at most {len(given)} positional arguments, not {len(args)}")
        repeated = [name for name, _ in zip(given, args, strict=False) if name in kwargs]
        if repeated:
            raise self._invalid_arguments(f"got {repeated[0]!r} twice")
        return {**dict(zip(given, args, strict=False)), **kwargs}

    def _invalid_arguments(self, problem: str) -> CallError:
        return CallError(ErrorCode.VALIDATION_ERROR, f"{self.id}: {self.__name__} {problem}")


class _Decorator(typing.Protocol):
    """Type of the decorator that `operation(...)` returns; it keeps the function's types."""

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
    """Options of `operation`."""

    id: str
    namespace: str
    name: str
    type: OperationType | str
    version: str
    description: str
    title: str
    tags: Sequence[str]
    annotations: Mapping[str, Any]
    access_control: AccessControl | Mapping[str, Any]
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
def operation(operation_id: str | None = None, /, **options: typing.Unpack[_Options]) -> _Decorator: ...
def operation(function: Callable[..., Any] | str | None = None, /, **options: Any) -> Any:
    """Convert a typed function to an Operation: `@operation`, `@operation("namespace.name")` or `@operation(...)`.

    The input schema comes from the parameters, the output schema from the return type, and descriptions from the
    docstring. The id consists of module and name, unless `id`, `namespace` or `name` are given. An async generator is a
    subscription; anything else is a mutation, or with `type="query"` a query, which may be retried. A plain `def` runs
    in a worker thread unless `inline=True`.
    """
    for unknown in options.keys() - _Options.__annotations__:
        raise TypeError(_explain_unknown(unknown))
    # The local variables where the function is defined: annotations that are strings may refer to them.
    scope = sys._getframe(1).f_locals
    if isinstance(function, str):
        options["id"] = function
    elif function is not None:
        return make_operation(function, scope, **options)
    return lambda decorated: make_operation(decorated, scope, **options)


def _explain_unknown(option: str) -> str:
    import difflib

    known = sorted(_Options.__annotations__)
    near = difflib.get_close_matches(option, known, 1)
    return f"unknown option {option!r} of @operation: " + (
        f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}"
    )


class _Signature(msgspec.Struct, frozen=True):
    """The parts of a function's signature that an operation needs."""

    record: RecordCodec
    output: TypeCodec[Any] | None
    positional: tuple[tuple[str, Any], ...]
    contexts: tuple[str, ...]
    streams: bool


def make_operation(
    function: Callable[..., Any],
    scope: Mapping[str, Any],
    *,
    id: str | None = None,
    namespace: str | None = None,
    name: str | None = None,
    type: OperationType | str | None = None,
    description: str | None = None,
    access_control: AccessControl | Mapping[str, Any] | None = None,
    inline: bool = False,
    **declared: Any,
) -> FunctionOperation[..., Any, Any]:
    """Convert a function to an operation; `scope` has the variables that annotations may refer to."""
    documentation = read_docstring(inspect.getdoc(function))
    signature = _read_signature(function, scope, documentation.parameters)
    if id is not None:
        if "." not in id or namespace is not None or name is not None:
            raise TypeError(f"invalid id={id!r}: expected 'namespace.name', without namespace= and name=")
        namespace, _, name = id.rpartition(".")
    spec = OperationSpec(
        namespace=namespace or _module_namespace(function),
        name=name or _name(function),
        type=_operation_type(function, signature, type),  # type: ignore[arg-type]  # converted by OperationSpec
        description=documentation.description if description is None else description,
        input_schema=signature.record.schema,
        output_schema=UNKNOWN if signature.output is None else signature.output.schema,
        access_control=OPEN if access_control is None else AccessControl.of(access_control),
        **declared,
    )
    call = _FunctionCall(function, signature, spec.id)
    return FunctionOperation(
        spec=spec,
        extra_problems=call.extra_problems if signature.record.converts else None,
        function=function,
        contexts=signature.contexts,
        handler=None if signature.streams else call.run,
        stream=call.run if signature.streams else None,
        threaded=not (signature.streams or inline or inspect.iscoroutinefunction(function)),
        wants_context=bool(signature.contexts),
        **({} if signature.output is None else _result_options(signature.output)),
    )


def _result_options(output: TypeCodec[Any]) -> dict[str, Any]:
    """Return the arguments of an Operation that concern results: the converters and the class of the declared type."""
    declared = output.type
    return {
        # If the declared type needs no conversion (`output.dump` is None), the handler may still return another type.
        "dump": output.dump or jsonable,
        "load": output.load,
        "result_class": declared if isinstance(declared, type) and not may_be_envelope(declared) else None,
    }


class _FunctionCall:
    """A handler that calls a function with the properties of the input as arguments."""

    __slots__ = ("_contexts", "_function", "_load", "_operation_id", "_positional", "_record")

    def __init__(self, function: Callable[..., Any], signature: _Signature, operation_id: str) -> None:
        self._function = function
        self._record = signature.record
        self._load: Load | msgspec.UnsetType | None = msgspec.UNSET
        self._contexts = signature.contexts
        self._positional = signature.positional
        self._operation_id = operation_id

    def run(self, input: Any, context: OperationContext) -> Any:
        """Convert the input to the parameters' types and call the function; raise `VALIDATION_ERROR` for invalid
        values."""
        load = self._load
        if load is msgspec.UNSET:
            load = self._make_load()
        if load is not None:
            try:
                input = load(input)
            except CallError as error:
                self._refuse(input, error)
                raise
        if not self._contexts and not self._positional:
            return self._function(**input)
        arguments = {**input}  # a copy: the input belongs to the caller
        for name in self._contexts:
            arguments[name] = context
        return self._call_by_position(arguments) if self._positional else self._function(**arguments)

    def _call_by_position(self, arguments: dict[str, Any]) -> Any:
        # A separate method: in `run`, the comprehension would slow down every call.
        leading = [arguments.pop(name, default) for name, default in self._positional]
        return self._function(*leading, **arguments)

    def extra_problems(self, input: Any) -> Sequence[Found]:
        """Return the problems that conversion to the parameters' types finds in an input that the schema rejects."""
        try:
            load = self._make_load() if self._load is msgspec.UNSET else self._load
            if isinstance(input, dict) and load is not None:
                load(input)
        except CallError as error:
            return _problems_of(error) or ()
        except Exception:  # noqa: BLE001  # user code may raise anything for an invalid value; the schema decides
            return ()
        return ()

    def _make_load(self) -> Load | None:
        """Store and return the function that converts inputs; None if inputs need no conversion."""
        load = self._load = self._record.load
        return load

    def _refuse(self, input: Any, error: CallError) -> None:
        """Raise `VALIDATION_ERROR` with the problems of the input if `error` is a validation error; otherwise do
        nothing.
        """
        found = _problems_of(error)
        if found is not None:
            # `from None`: the cause quotes the value, which may be a secret.
            problems = self._record.schema.errors(input, found)
            refused = validation_error(problems, f"invalid input for {self._operation_id}")
            refused.details |= {"operationId": self._operation_id, "executed": "no"}
            raise refused from None


def _problems_of(error: CallError) -> list[Found] | None:
    """Return the problems that a loader found; None if the error was raised by user code instead."""
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
            raise TypeError(f"{name}: unsupported parameter *{parameter.name}: use a list")
        if parameter.name in ("self", "cls") and parameter.name not in hints:
            raise TypeError(f"{name}: cannot decorate a method in a class body: use operation(instance.{name})")
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
        message = f"{_name(function)}: undefined name {error.name!r} in an annotation"
        raise TypeError(message) from None


def _read_return(function: Callable[..., Any], hints: Mapping[str, Any]) -> tuple[Any, bool]:
    """Return the type of `data` (UNSET if not annotated), and whether the function streams it."""
    streams = inspect.isasyncgenfunction(function)
    if inspect.isgeneratorfunction(function):
        raise TypeError(f"{_name(function)}: expected an async generator (`async def` with `yield`)")
    if "return" not in hints:
        return msgspec.UNSET, streams
    returned = hints["return"]
    origin = typing.get_origin(returned) or returned
    if origin in _STREAMS and not inspect.iscoroutinefunction(function):
        streams = True
        returned = (typing.get_args(returned) or (msgspec.UNSET,))[0]
        origin = typing.get_origin(returned) or returned
    if origin in (ResponseEnvelope, Event):
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
        kind = "an async generator" if signature.streams else "not an async generator"
        raise TypeError(f"{_name(function)} is {kind}, so the type of the operation cannot be {declared!s}")
    return declared


def _module_namespace(function: Callable[..., Any]) -> str:
    module = function.__module__
    stated = getattr(sys.modules.get(module), NAMESPACE_VARIABLE, None)
    if isinstance(stated, str):
        return stated
    return "main" if module == "__main__" else module
