"""How cached values are called: a kind of two words, then its parts, all joined by colons."""

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from string import Formatter
from typing import Any

from django.conf import settings

KIND = re.compile(r"[a-z][a-z0-9_]*:[a-z][a-z0-9_]*")  # "inventory:view"


class _Quoting(Formatter):
    """Fills in a template like str.format, with each value as one part of a name."""

    def format_field(self, value: Any, format_spec: str) -> str:
        return quoted(format(value, format_spec))


_quoting = _Quoting()


class Place:
    """Where one value is kept. Readable beginnings are for people, digests keep keys short and apart."""

    __slots__ = ("_mine", "_ours", "_prefix", "name", "namespace")

    def __init__(self, name: str, namespace: str = "", schema: int = 1) -> None:
        """Take its own name ("shop:page:7:2") and what a writer makes stale with it ("shop:page:7")."""
        self.name, self.namespace = name, namespace or name
        kind, mine = kind_of(name), digest(name)
        self._prefix = settings.KEY_PREFIX
        self._mine = f"{kind}:{mine}:{schema}"
        self._ours = f"{kind}:{digest(namespace) if namespace else mine}"

    @property
    def revision(self) -> str:
        """Give the key of the namespace's revision; the server's own run is added to it."""
        return f"{self._prefix}:revision:{self._ours}"

    @property
    def marks(self) -> str:
        """Give the key of the writers that are about to change the namespace."""
        return f"{self._prefix}:marks:{self._ours}"

    def value(self, revision: str) -> str:
        return f"{self._prefix}:value:{self._mine}:{revision}"

    def rebuild(self, revision: str) -> str:
        """Give the key of who rebuilds the value, or that this has just failed."""
        return f"{self._prefix}:rebuild:{self._mine}:{revision}"


def filled(template: str, values: Mapping[str, Any]) -> str:
    """Name the value that a template means for these values."""
    return _quoting.vformat(template, (), values)


def parts_in(template: str) -> int:
    """Count the parts that a template names; a format of its own, like {n:03}, is none."""
    fields = [(before, "x") for before, field, _, _ in Formatter().parse(template)]
    return len("".join(before + mark for before, mark in fields).split(":")) - 2


def name_of(kind: str, parts: Iterable[object]) -> str:
    """Name a value. Parts are told apart by their texts: 7 and "7" are one."""
    return ":".join([kind, *(quoted(str(part)) for part in parts)])


def kind_of(name: str) -> str:
    return ":".join(name.split(":", 2)[:2])


def parts_of(name: str) -> list[str]:
    """Give the parts that a name was made of, as texts."""
    return [part.replace("%3A", ":").replace("%25", "%") for part in name.split(":")[2:]]


def quoted(part: str) -> str:
    """Write a part so that no other parts give the same name."""
    return part.replace("%", "%25").replace(":", "%3A") if "%" in part or ":" in part else part


def digest(name: str) -> str:
    return sha256(name.encode(errors="surrogatepass")).hexdigest()[:32]


def beginning(what: str, kind: str) -> str:
    return f"{settings.KEY_PREFIX}:{what}:{kind}:"
