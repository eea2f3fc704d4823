"""The kinds of cached values that this code declares, by name."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from operations.cache import Cached

_declared: dict[str, "Cached"] = {}


class UnsafeCache(ValueError):
    """A declaration that cannot be kept."""


def declare(cached: "Cached") -> None:
    """Take a kind in.

    Raises:
        UnsafeCache: there is one of that name.
    """
    if cached.name in _declared:
        raise UnsafeCache(f"a cache is already called {cached.name!r}")
    _declared[cached.name] = cached


def find(kind: str) -> "Cached | None":
    return _declared.get(kind)


def every() -> list["Cached"]:
    return list(_declared.values())
