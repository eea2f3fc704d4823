"""Declare a job: one decorator says all there is to know about it, and the registry finds it by name."""

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from string import Formatter
from typing import Any

from rest_framework import serializers
from rest_framework.fields import empty

from operations import cache_names

NAME = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")


class Rejected(Exception):
    """The domain's no: final, shown to the client, not an error of ours."""

    def __init__(self, code: str, message: str) -> None:
        """Say no with a code for programs and a sentence for people."""
        super().__init__(message)
        self.code = code
        self.message = message


class Duplicate(Exception):
    """Another operation has done it already. This one ends `ignored: duplicate`, and its result names it."""

    def __init__(self, *, of: str, message: str) -> None:
        """Take the other operation's id."""
        super().__init__(message)
        self.of = of


class NotYet(Exception):
    """Another operation has to end before. This one waits, and its attempt is given back."""

    def __init__(self, *, seconds: float, message: str) -> None:
        """Take the time after which to look again, and what is waited for."""
        super().__init__(message)
        self.seconds = seconds


class NoSuchJob(LookupError):
    """No code here knows a job of that name."""


class UnsafeJob(ValueError):
    """A job's contract would break a promise; raised when it is declared."""


class Backoff:
    """The pauses before each further attempt, in seconds and before jitter. One attempt more than pauses."""

    def __init__(self, *delays_seconds: float) -> None:
        """Take the pauses in order, for example Backoff(5, 15, 45, 120)."""
        self.delays_seconds = delays_seconds

    @property
    def attempts(self) -> int:
        return len(self.delays_seconds) + 1

    def before(self, attempt: int) -> float:
        """Give the seconds to wait before `attempt` (2 is the first repetition)."""
        if not self.delays_seconds:
            return 0.0
        return self.delays_seconds[min(attempt - 2, len(self.delays_seconds) - 1)]


_kept = threading.local()


class Payload(serializers.Serializer[Any]):
    """What a request may contain. A member that is not declared is refused, never dropped."""

    def to_internal_value(self, data: Any) -> Any:
        unknown = set(data) - self._members() if isinstance(data, Mapping) else set()
        if unknown:
            raise serializers.ValidationError(
                dict.fromkeys(sorted(unknown), "This member is not known here.")
            )
        return super().to_internal_value(data)

    @classmethod
    def check(cls, data: Mapping[str, Any], *, owner_id: int | None = None) -> dict[str, Any]:
        """Give the Python values of a request's body (then say whose it is) or of a stored payload.

        Each thread keeps one serializer of a kind: making one costs several times what using it does.

        Raises:
            rest_framework.serializers.ValidationError: it is not valid.
        """
        kept: dict[type[Payload], Payload] = _kept.__dict__.setdefault("serializers", {})
        if cls not in kept:
            kept[cls] = cls()
        serializer = kept[cls]
        serializer._context = {} if owner_id is None else {"owner_id": owner_id}
        return dict(serializer.run_validation(data))

    @classmethod
    def store(cls, body: Mapping[str, Any], *, owner_id: int) -> dict[str, Any]:
        """Give what is stored of a body: its members as sent, and the owner's id where the job wants it."""
        fields = cls._declared_fields.items()
        return {**body, **{name: owner_id for name, field in fields if isinstance(field, OwnerID)}}

    def _members(self) -> set[str]:
        stored = "owner_id" not in self.context
        return {name for name, field in self.fields.items() if stored or not isinstance(field, OwnerID)}


class OwnerID(serializers.IntegerField):
    """The id of the authenticated user. Comes from the credentials, never from the body."""

    def get_value(self, data: Any) -> Any:
        return self.context.get("owner_id", data.get(self.field_name))


class ResourceVersion(serializers.IntegerField):
    """Which version of the resource a request brings: the producer's sequence number, which only grows.

    An operation whose version is not newer than the one that was applied is ignored, without a run.
    """

    def __init__(self, **kwargs: Any) -> None:
        """Allow what the row can hold."""
        super().__init__(**{"min_value": 0, "max_value": 2**63 - 1, **kwargs})


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job and its contract, as declared by @job."""

    name: str
    purpose: str
    handler: Callable[..., Any]
    payload: type[Payload]
    # "app.codename" that a user must have to ask for it over HTTP; empty: whoever has a token may.
    permission: str = ""
    route: str = ""  # below /v1/; empty: not to be asked for over HTTP
    resource: str = ""  # template over the payload, e.g. "inventory:user:{user_id}": lock and fence
    dependency: str = ""  # the outside service that `call` talks to
    call: Callable[..., Any] | None = None  # call(run, **payload) -> answer, with no transaction open
    # compensate(run, **payload): releases what a failure, a cancel or a deadline would leave, in own runs.
    compensate: Callable[..., Any] | None = None
    no_return: str = ""  # the effect after which neither a cancel nor a failure takes anything back
    version: Callable[[Any], int] | None = (
        None  # version(answer): the producer's sequence number for the resource
    )
    redact: tuple[str, ...] = ()  # members of the payload that are shown to nobody
    invalidates: tuple[str, ...] = ()  # templates of cached values that a success makes stale
    retry: Backoff = Backoff(5, 15, 45, 120)  # noqa: RUF009 (it is immutable)
    soft_limit: float = 30  # seconds until the run is told to stop
    hard_limit: float = 40  # seconds until its process is ended and its result refused
    deadline: timedelta = timedelta(hours=1)
    key_ttl: timedelta = timedelta(hours=24)
    lock: str = "redis"  # or "database": for calls that would do harm if made twice at once
    ordered: bool = False  # one after the other for a resource, in the order of acceptance
    on_dead: str = "block"  # or "skip": whether a dead letter holds up those behind it
    schema_version: int = 1  # of the payload; raised when what was stored before can't be read as it is
    # How a payload of version n becomes one of n + 1: {n: function(payload) -> payload}. A version without an
    # upgrade is no longer taken.
    upgrade: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = field(default_factory=dict)

    def resource_of(self, values: Mapping[str, Any]) -> str:
        """Name the resource. From checked values, so that one thing has one name however it is spelled."""
        return self.resource.format(**values)

    @cached_property
    def version_member(self) -> str | None:
        """Name the member of the payload that is a ResourceVersion."""
        fields = self.payload._declared_fields.items()
        return next((name for name, field in fields if isinstance(field, ResourceVersion)), None)

    def version_in(self, payload: Mapping[str, Any]) -> int | None:
        """Read the version that a request brings; None: it brings none."""
        found = None if self.version_member is None else payload.get(self.version_member)
        return None if found is None else int(ResourceVersion().to_internal_value(found))

    def stale_after(self, values: Mapping[str, Any]) -> list[str]:
        """Name the cached values that success with these values makes stale."""
        return [cache_names.filled(template, values) for template in self.invalidates]

    def validate(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Check a stored payload again, as Python values for the handler.

        Raises:
            rest_framework.serializers.ValidationError: the code no longer takes it.
        """
        return self.payload.check(payload)


_registry: dict[str, Job] = {}


def job(
    name: str, *, payload: type[Payload], invalidates: Iterable[str] = (), **contract: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated handler as the job `name`; its docstring's first line is the purpose.

    Raises:
        UnsafeJob: the name is taken or malformed, or the contract cannot be kept.
    """

    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        purpose = (handler.__doc__ or "").strip().partition("\n")[0]
        declared = Job(
            name=name,
            purpose=purpose,
            handler=handler,
            payload=payload,
            invalidates=tuple(invalidates),
            **contract,
        )
        _refuse_unsafe(declared)
        _registry[name] = declared
        return handler

    return register


def _refuse_unsafe(declared: Job) -> None:
    faults = {
        f"job names look like 'domain.verb', not {declared.name!r}": not NAME.fullmatch(declared.name),
        f"a job is already called {declared.name!r}": declared.name in _registry,
        f"{declared.name}: the handler's docstring must say what the job is for": not declared.purpose,
        f"{declared.name}: soft_limit {declared.soft_limit} must be below hard_limit {declared.hard_limit}": (
            declared.soft_limit >= declared.hard_limit
        ),
        f"{declared.name}: a version needs a resource to guard": bool(
            (declared.version or declared.version_member) and not declared.resource
        ),
        f"{declared.name}: a version comes with the payload or with the answer, not with both": bool(
            declared.version and declared.version_member
        ),
        f"{declared.name}: its names need {_unsure(declared)}, which may be missing": bool(_unsure(declared)),
        f"{declared.name}: no member of its payload is called {_strangers(declared)}": bool(
            _strangers(declared)
        ),
        f"{declared.name}: what is redacted can't be part of a name, and {_named_secrets(declared)} is": bool(
            _named_secrets(declared)
        ),
        f"{declared.name}: what compensates needs a call whose steps it undoes": (
            declared.compensate is not None and declared.call is None
        ),
        f"{declared.name}: {declared.no_return!r} is a point of no return for a job that compensates": (
            bool(declared.no_return) and declared.compensate is None
        ),
        f"{declared.name}: lock is 'redis' or 'database', not {declared.lock!r}": (
            declared.lock not in ("redis", "database")
        ),
        f"{declared.name}: a lock in the database needs a resource to be the lock of": (
            declared.lock == "database" and not declared.resource
        ),
        f"{declared.name}: its resource has another kind of lock in another job": any(
            other.lock != declared.lock and _may_meet(other, declared) for other in _registry.values()
        ),
        f"{declared.name}: an order needs a resource to keep it for": (
            declared.ordered and not declared.resource
        ),
        f"{declared.name}: on_dead is 'block' or 'skip', not {declared.on_dead!r}": (
            declared.on_dead not in ("block", "skip")
        ),
        f"{declared.name}: upgrades lead up to schema_version {declared.schema_version} without a gap": (
            sorted(declared.upgrade)
            != list(range(declared.schema_version - len(declared.upgrade), declared.schema_version))
            or declared.schema_version <= len(declared.upgrade)
        ),
    }
    for sentence, found in faults.items():
        if found:
            raise UnsafeJob(sentence)


def _unsure(declared: Job) -> str:
    """Name what the templates of resource and cached values use and the payload may not have."""
    templates = "".join((declared.resource, *declared.invalidates))
    wanted = {name for _, name, _, _ in Formatter().parse(templates) if name}
    fields = declared.payload._declared_fields
    sure = {name for name, field in fields.items() if field.required or field.default is not empty}
    return ", ".join(sorted(wanted - sure))


def _strangers(declared: Job) -> str:
    return ", ".join(sorted(set(declared.redact) - set(declared.payload._declared_fields)))


def _named_secrets(declared: Job) -> str:
    """Name the redacted members that locks, keys of caches or versions would show."""
    templates = "".join((declared.resource, *declared.invalidates))
    return ", ".join(
        name for name in declared.redact if f"{{{name}}}" in templates or name == declared.version_member
    )


def get(name: str) -> Job:
    """Find a job by its name.

    Raises:
        NoSuchJob: no code here knows it.
    """
    try:
        return _registry[name]
    except KeyError:
        raise NoSuchJob(f"no job is called {name!r}; known are {', '.join(sorted(_registry))}") from None


def find(name: str) -> Job | None:
    """Find a job by its name; None: it is not in this code, whose release may be older or newer."""
    return _registry.get(name)


def every() -> list[Job]:
    return list(_registry.values())


def depending_on(dependency: str) -> list[str]:
    """Name the jobs whose calls go to a dependency."""
    return sorted(each.name for each in _registry.values() if each.dependency == dependency)


def lock_of(resource: str) -> str:
    """Say where the locks of a resource are kept: "redis" or "database"."""
    kept_in_rows = (job for job in _registry.values() if job.lock == "database")
    return "database" if any(resource.startswith(_prefix(job)) for job in kept_in_rows) else "redis"


def _prefix(job: Job) -> str:
    """Give what all resources of a job begin with: its template up to the first value."""
    return job.resource.partition("{")[0]


def _may_meet(one: Job, other: Job) -> bool:
    """Say whether two jobs may name the same resource."""
    if not one.resource or not other.resource:
        return False
    return _prefix(one).startswith(_prefix(other)) or _prefix(other).startswith(_prefix(one))


def skipping_the_dead() -> list[str]:
    """Name the ordered jobs that do not wait behind a dead letter."""
    return [each.name for each in _registry.values() if each.on_dead == "skip"]
