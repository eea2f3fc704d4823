"""How cached values are called: a kind of two words, then its parts, all joined by colons."""

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from string import Formatter
from typing import Any, NamedTuple

from django.conf import settings

KIND = re.compile(r"[a-z][a-z0-9_]*:[a-z][a-z0-9_]*")  # "inventory:view"


class _Quoting(Formatter):
    """Fills in a template like str.format, with each value as one part of a name."""

    def format_field(self, value: Any, format_spec: str) -> str:
        return quoted(format(value, format_spec))


_quoting = _Quoting()


class Place(NamedTuple):
    """Where one value is kept. Readable beginnings are for people, digests keep keys short and apart."""

    name: str  # its own: "shop:page:7:2"
    namespace: str  # what a writer makes stale, with all that is in it: "shop:page:7"
    schema: int = 1

    @property
    def revision(self) -> str:
        """Give the key of the namespace's revision; the server's own run is added to it."""
        return key("revision", self.namespace)

    @property
    def marks(self) -> str:
        """Give the key of the writers that are about to change the namespace."""
        return key("marks", self.namespace)

    def value(self, revision: str) -> str:
        return f"{key('value', self.name)}:{self.schema}:{revision}"

    def rebuild(self, revision: str) -> str:
        """Give the key of the lock of who rebuilds the value."""
        return f"{key('rebuild', self.name)}:{self.schema}:{revision}"

    def cool(self, revision: str) -> str:
        """Give the key that is there for a while after a rebuild has failed."""
        return f"{key('cool', self.name)}:{self.schema}:{revision}"


def filled(template: str, values: Mapping[str, Any]) -> str:
    """Name the value that a template means for these values."""
    return _quoting.vformat(template, (), values)


def parts_in(template: str) -> int:
    """Count the parts that a template names; a format of its own, like {n:03}, is none."""
    fields = [(before, "x") for before, field, _, _ in Formatter().parse(template)]
    return len("".join(before + mark for before, mark in fields).split(":")) - 2


def name_of(kind: str, parts: Iterable[object]) -> str:
    return ":".join([kind, *(quoted(str(part)) for part in parts)])


def kind_of(name: str) -> str:
    return ":".join(name.split(":", 2)[:2])


def parts_of(name: str) -> list[str]:
    """Give the parts that a name was made of, as texts."""
    return [part.replace("%3A", ":").replace("%25", "%") for part in name.split(":")[2:]]


def quoted(part: str) -> str:
    """Write a part so that no other parts give the same name."""
    return part.replace("%", "%25").replace(":", "%3A") if "%" in part or ":" in part else part


def key(what: str, name: str) -> str:
    """Give the key of something about a value or namespace of that name."""
    return f"{beginning(what, kind_of(name))}{sha256(name.encode()).hexdigest()[:32]}"


def beginning(what: str, kind: str) -> str:
    return f"{settings.KEY_PREFIX}:{what}:{kind}:"
