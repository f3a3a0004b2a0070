"""Attributes that are computed once, under a lock, and LazyLock: the lock, created on first use."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, RLock
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class cached_attribute(Generic[T]):  # noqa: N801  (used like `property`)
    """Like `functools.cached_property`, but the value is computed under the `_lock` of the instance."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_attribute[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        return self._get(instance)

    def _get(self, instance: Any) -> Any:
        made = instance.__dict__
        with instance._lock:
            if self._name not in made:
                made[self._name] = self._make(instance)
            return made[self._name]


class shared_attribute(cached_attribute[T]):  # noqa: N801  (used like `property`)
    """A `cached_attribute` that an instance shares with its `_twin`: the value is computed only once for both."""

    def _get(self, instance: Any) -> Any:
        twin = instance._twin
        if twin is instance:
            return super()._get(instance)
        return instance.__dict__.setdefault(self._name, getattr(twin, self._name))


class LazyLock:
    """A separate lock for each instance, created on first access, because most instances are never used."""

    _creating = Lock()

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        with self._creating:
            return instance.__dict__.setdefault("_lock", RLock())
