"""deferred_schema: a Schema whose document is written when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any

from operations.schema.schema import Loader, Schema

if TYPE_CHECKING:
    from operations.schema.dialects.conversion import Conversion

Write = Callable[[], Mapping[str, Any] | bool]
Revise = Callable[[dict[str, Any] | bool], None]

_making_locks = Lock()


class _DeferredSchema(Schema):
    """A Schema that asks for its document on first use."""

    def __init__(self, write: Write, dialect: str | None, loader: Loader | None, revise: Revise | None) -> None:
        self._write = write
        self._revise = revise
        self._dialect = dialect
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        # Only the source and the lock under which it is made are not there from the beginning.
        if name == "_lock":
            with _making_locks:
                return self.__dict__.setdefault("_lock", RLock())
        if name != "_source":
            raise AttributeError(name)
        with self._lock:
            if "_source" not in self.__dict__:
                self._source = self._write()
            return self._source

    def _convert(self) -> Conversion:
        conversion = super()._convert()
        if self._revise is not None:
            self._revise(conversion.document)
        return conversion

    def __reduce__(self) -> Any:
        return Schema, (self.document,)


def deferred_schema(
    write: Write, *, dialect: str | None = None, loader: Loader | None = None, revise: Revise | None = None
) -> Schema:
    """A Schema from a document that `write` gives when it is first needed; the rest is as in `from_schema`.

    For a source of a thousand operations of which a program calls ten. `revise` may change the converted document, as
    `lift_required` does.
    """
    return _DeferredSchema(write, dialect, loader, revise)
