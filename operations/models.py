"""The rows that are the truth: operations, their keys, their history, and what failed."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import uuid_utils.compat
from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now


class Status(models.TextChoices):
    """The six states of an operation, for ever. docs/lifecycle.md says what each means."""

    QUEUED = "queued"
    PROCESSING = "processing"
    RETRY_SCHEDULED = "retry_scheduled"
    SUCCEEDED = "succeeded"
    FAILED_PERMANENT = "failed_permanent"
    IGNORED = "ignored"


WAITING = (Status.QUEUED, Status.RETRY_SCHEDULED)
DONE = (Status.SUCCEEDED, Status.IGNORED)  # final for ever; a dead letter may still come back
FINAL = (Status.SUCCEEDED, Status.FAILED_PERMANENT, Status.IGNORED)


class Category(models.TextChoices):
    """What kind of failure: one list for the decision to retry, log lines and metric labels."""

    DEPENDENCY_UNAVAILABLE = "dependency_unavailable"
    TIMEOUT = "timeout"
    RATE_LIMITED = "rate_limited"
    CONFLICT = "conflict"
    OUTCOME_UNKNOWN = "outcome_unknown"
    INVALID_INPUT = "invalid_input"
    NOT_FOUND = "not_found"
    PERMISSION = "permission"
    BUSINESS_REJECTED = "business_rejected"
    BUG = "bug"
    POISON = "poison"
    CANCELLED = "cancelled"
    NONE = "none"


TRANSIENT = (Category.DEPENDENCY_UNAVAILABLE, Category.TIMEOUT, Category.RATE_LIMITED, Category.CONFLICT)
PERMANENT = (
    Category.INVALID_INPUT,
    Category.NOT_FOUND,
    Category.PERMISSION,
    Category.BUSINESS_REJECTED,
    Category.BUG,
)


class Reason(models.TextChoices):
    """Why an operation is in its status. A retryable error's reason is its category."""

    ACCEPTED = "accepted"
    REPLAYED = "replayed"
    INTERRUPTED = "interrupted"
    RECONCILED = "reconciled"
    DEPENDENCY_UNAVAILABLE = "dependency_unavailable"
    TIMEOUT = "timeout"
    RATE_LIMITED = "rate_limited"
    CONFLICT = "conflict"
    OUTCOME_UNKNOWN = "outcome_unknown"
    LOCK_CONTENDED = "lock_contended"
    DEPENDENCY_HELD = "dependency_held"
    WORKER_LOST = "worker_lost"
    UNKNOWN_JOB_TYPE = "unknown_job_type"
    UNSUPPORTED_SCHEMA = "unsupported_schema"
    INVALID_INPUT = "invalid_input"
    BUSINESS_REJECTED = "business_rejected"
    NOT_FOUND = "not_found"
    PERMISSION = "permission"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    TIMEOUT_EXHAUSTED = "timeout_exhausted"
    DEADLINE_PASSED = "deadline_passed"
    COMPENSATION_FAILED = "compensation_failed"
    BUG = "bug"
    STALE_VERSION = "stale_version"
    DUPLICATE = "duplicate"
    CANCELLED = "cancelled"
    DISCARDED = "discarded"
    SUPERSEDED = "superseded"


@dataclass(frozen=True)
class Move:
    """One arrow of the lifecycle. An empty `source` is the outside: the operation does not exist yet."""

    source: str
    to: str
    reasons: tuple[str, ...]


def _moves(sources: tuple[str, ...], to: str, *reasons: str) -> tuple[Move, ...]:
    return tuple(Move(source, to, reasons) for source in sources)


class Operation(models.Model):
    """One accepted request to do one thing."""

    # The only moves there are: lifecycle.py refuses to be written with another, and docs/lifecycle.md is held
    # to them.
    MOVES: ClassVar[tuple[Move, ...]] = (
        *_moves(("",), Status.QUEUED, Reason.ACCEPTED),
        *_moves(WAITING, Status.PROCESSING, ""),
        *_moves(
            WAITING,
            Status.RETRY_SCHEDULED,
            Reason.LOCK_CONTENDED,
            Reason.DEPENDENCY_UNAVAILABLE,
            Reason.UNKNOWN_JOB_TYPE,
            Reason.UNSUPPORTED_SCHEMA,
        ),
        *_moves(
            WAITING,
            Status.FAILED_PERMANENT,
            Reason.INVALID_INPUT,
            Reason.DEADLINE_PASSED,
            Reason.UNKNOWN_JOB_TYPE,
            Reason.UNSUPPORTED_SCHEMA,
            Reason.COMPENSATION_FAILED,
        ),
        *_moves(WAITING, Status.RETRY_SCHEDULED, Category.TIMEOUT, Category.CANCELLED),
        *_moves(WAITING, Status.IGNORED, Reason.STALE_VERSION, Reason.DUPLICATE, Reason.CANCELLED),
        *_moves((Status.PROCESSING,), Status.SUCCEEDED, ""),
        *_moves(
            (Status.PROCESSING,), Status.IGNORED, Reason.STALE_VERSION, Reason.DUPLICATE, Reason.CANCELLED
        ),
        *_moves(
            (Status.PROCESSING,),
            Status.FAILED_PERMANENT,
            Reason.INVALID_INPUT,
            Reason.BUSINESS_REJECTED,
            Reason.NOT_FOUND,
            Reason.PERMISSION,
            Reason.ATTEMPTS_EXHAUSTED,
            Reason.TIMEOUT_EXHAUSTED,
            Reason.DEADLINE_PASSED,
            Reason.WORKER_LOST,
            Reason.OUTCOME_UNKNOWN,
            Reason.COMPENSATION_FAILED,
            Reason.BUG,
        ),
        *_moves(
            (Status.PROCESSING,),
            Status.RETRY_SCHEDULED,
            *TRANSIENT,
            Reason.WORKER_LOST,
            Reason.DEPENDENCY_HELD,
            Reason.OUTCOME_UNKNOWN,
        ),
        # What is reserved is released first: the category says what for.
        *_moves((Status.PROCESSING,), Status.RETRY_SCHEDULED, *PERMANENT, Category.CANCELLED),
        *_moves((Status.PROCESSING,), Status.QUEUED, Reason.INTERRUPTED),
        *_moves((Status.FAILED_PERMANENT,), Status.QUEUED, Reason.REPLAYED, Reason.RECONCILED),
        *_moves((Status.FAILED_PERMANENT,), Status.IGNORED, Reason.DISCARDED),
    )

    after_commit_id: int | None = (
        None  # not a column: the AfterCommit row that the move just made has written
    )
    sent_again = False  # not a column: this run began as a look-up, and has spent an attempt on sending
    NOT_ASKED: ClassVar[int] = -1
    hold_id: int | None = NOT_ASKED  # not a column: the hold that it waits under, where a statement has asked
    hold: "Hold | None" = None  # not a column: that hold
    # Not a column: who has to end before it, in its resource's line, where a statement has asked.
    blocked_by_id: Any = NOT_ASKED

    id = models.UUIDField(primary_key=True, default=uuid_utils.compat.uuid7, editable=False)
    job_type = models.CharField(max_length=100)
    schema_version = models.PositiveSmallIntegerField(default=1)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+", db_index=False)
    source = models.CharField(max_length=20, default="api")
    status = models.CharField(max_length=20, choices=Status.choices, default=Status.QUEUED)
    reason = models.CharField(max_length=30, choices=Reason.choices, blank=True, default=Reason.ACCEPTED)
    step = models.CharField(max_length=50, blank=True, default="")

    runs = models.PositiveIntegerField(default=0)
    attempt = models.PositiveSmallIntegerField(default=0)
    max_attempts = models.PositiveSmallIntegerField()
    interruptions = models.PositiveSmallIntegerField(default=0)
    waits = models.PositiveIntegerField(default=0)
    lookups = models.PositiveSmallIntegerField(db_default=0)  # runs that began with an outcome unknown
    replays = models.PositiveSmallIntegerField(default=0)
    run_at = models.DateTimeField(db_default=Now())
    deadline_at = models.DateTimeField()

    resource = models.CharField(max_length=200, blank=True, default="")
    resource_version = models.BigIntegerField(null=True)
    resource_seq = models.BigIntegerField(null=True)  # the place in line of an ordered job's operation
    parent = models.UUIDField(null=True)  # the operation whose follow-up this is
    depth = models.PositiveSmallIntegerField(default=0)  # how many follow-ups led here
    waiting_for = models.CharField(max_length=300, blank=True, default="")
    idempotency_key = models.CharField(max_length=255, blank=True, default="")
    request_id = models.CharField(max_length=100, blank=True, default="")
    correlation_id = models.CharField(max_length=100, blank=True, default="")

    claim_token = models.UUIDField(null=True)
    claimed_by = models.CharField(max_length=100, blank=True, default="")
    lease_expires_at = models.DateTimeField(null=True)
    published_at = models.DateTimeField(null=True)
    first_started_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    cancel_requested_at = models.DateTimeField(null=True)  # by its owner; a replay forgets it
    # The end that waits until what was reserved is released: its status and reason, as "ignored cancelled".
    compensating_for = models.CharField(max_length=60, blank=True, default="", db_default="")
    created_at = models.DateTimeField(db_default=Now())
    version = models.PositiveIntegerField(default=1)

    class Meta:
        indexes = [
            models.Index(
                F("job_type"), F("run_at"), name="operation_waiting", condition=Q(status__in=WAITING)
            ),
            models.Index(F("job_type"), name="operation_processing", condition=Q(status=Status.PROCESSING)),
            models.Index(
                F("resource"),
                F("run_at"),
                name="operation_resource_open",
                condition=~Q(status__in=DONE) & ~Q(resource=""),
            ),
            models.Index(F("owner"), F("id").desc(), name="operation_of_owner"),
            models.Index(
                F("resource"),
                F("resource_seq"),
                name="operation_in_line",
                condition=Q(resource_seq__isnull=False),
            ),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(status__in=Status.values), name="operation_status_known"),
            models.CheckConstraint(
                condition=Q(attempt__lte=F("max_attempts")), name="operation_attempts_bounded"
            ),
            models.CheckConstraint(
                name="operation_lease_belongs_to_claim",
                condition=Q(
                    status=Status.PROCESSING, claim_token__isnull=False, lease_expires_at__isnull=False
                )
                | (~Q(status=Status.PROCESSING) & Q(lease_expires_at__isnull=True, claimed_by="")),
            ),
            models.CheckConstraint(
                name="operation_final_has_finished",
                condition=Q(status__in=FINAL, finished_at__isnull=False)
                | (~Q(status__in=FINAL) & Q(finished_at__isnull=True)),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_type} {self.id}"

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    def log_fields(self) -> dict[str, Any]:
        """Give the fields that every log line about this operation carries."""
        return {
            "operation_id": str(self.id),
            "job_type": self.job_type,
            "resource": self.resource,
            "request_id": self.request_id,
            "correlation_id": self.correlation_id,
            "run": self.runs,
            "attempt": self.attempt,
        }


class OperationData(models.Model):
    """The big columns of an operation, apart so that its row stays small and lists never load them."""

    operation = models.OneToOneField(Operation, models.CASCADE, primary_key=True, related_name="data")
    payload = models.JSONField()
    result = models.JSONField(null=True)
    error = models.JSONField(null=True)  # of the last failure, as dead_letters.Failure.as_json gives it
    compensated = models.JSONField(null=True)  # the failure that is compensated for, all of it

    class Meta:
        permissions = [("reveal_operationdata", "Can see what jobs redact")]

    def __str__(self) -> str:
        return f"data of {self.operation_id}"


class IdempotencyRecord(models.Model):
    """Which operation a client's key names. Inserted with it, in one statement."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+", db_index=False)
    job_type = models.CharField(max_length=100)
    idempotency_key = models.CharField(max_length=255)
    request_hash = models.CharField(max_length=80)  # "v1:" and the hexadecimal SHA-256 of the request
    operation = models.OneToOneField(Operation, models.CASCADE, related_name="key")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["user", "job_type", "idempotency_key"], name="one_operation_a_key"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_type} {self.idempotency_key}"


class Transition(models.Model):
    """One move of one operation, append-only. No constraint ties it: history may outlive its operation."""

    operation = models.ForeignKey(
        Operation, models.DO_NOTHING, related_name="transitions", db_constraint=False
    )
    from_status = models.CharField(max_length=20, blank=True)
    to_status = models.CharField(max_length=20, choices=Status.choices)
    reason = models.CharField(max_length=30, blank=True)
    run = models.PositiveIntegerField()
    attempt = models.PositiveSmallIntegerField()
    error = models.CharField(max_length=500, blank=True)
    actor = models.CharField(max_length=150)
    at = models.DateTimeField()

    class Meta:
        indexes = [BrinIndex(F("at"), name="transition_at")]

    def __str__(self) -> str:
        return f"{self.from_status or 'nothing'} → {self.to_status} ({self.reason or 'done'})"


class Certainty(models.TextChoices):
    """What is known of an effect: see docs/effects.md."""

    NOT_SENT = "not_sent"  # proven: nothing left us, or the other side knows nothing of it
    MAYBE_SENT = "maybe_sent"  # committed before each send; until an answer or a look-up says more
    CONFIRMED = "confirmed"
    REFUSED = "refused"


class Effect(models.Model):
    """A step of an operation: one of ours, committed with what it did, or one outside, from its intent on."""

    operation = models.ForeignKey(Operation, models.CASCADE, related_name="effects")
    step = models.CharField(max_length=50)
    generation = models.PositiveSmallIntegerField(default=1)
    kind = models.CharField(max_length=20, default="local")  # or "outside"
    certainty = models.CharField(max_length=20, choices=Certainty, db_default=Certainty.CONFIRMED)
    result = models.JSONField(null=True)  # what the step gave, or the other side answered
    error = models.JSONField(null=True)  # why it was refused or not sent: {category, message, code?}
    run = models.PositiveIntegerField()  # which run did it, or sent it last
    created_at = models.DateTimeField(db_default=Now())
    undone_at = models.DateTimeField(null=True)  # compensated: the step is to be done again, if at all

    # Of those outside only.
    key = models.CharField(max_length=150, blank=True, db_default="")  # the provider's idempotency key
    request = models.JSONField(null=True)  # as first sent; frozen
    amount_minor = models.BigIntegerField(null=True)  # what is at stake, where it is money
    first_sent_at = models.DateTimeField(null=True)
    sent_at = models.DateTimeField(null=True)  # last
    answers_by = models.DateTimeField(null=True)  # from then on a look-up's "not found" counts
    window_ends_at = models.DateTimeField(null=True)  # until then the provider knows the key
    concluded_at = models.DateTimeField(null=True)
    concluded_by = models.CharField(max_length=150, blank=True, db_default="")
    replays = models.PositiveSmallIntegerField(db_default=0)  # of its operation, when it was sent first
    # When a reconciler has seen that the provider knows what became of it; its operation is dead, and asks.
    found_at = models.DateTimeField(null=True)
    proposed = models.JSONField(
        null=True
    )  # how a first person would settle it: {by, certainty, reference, reason}

    class Meta:
        permissions = [("settle_effect", "Can settle effects whose outcome is unknown")]
        indexes = [
            models.Index(
                F("operation"), name="effect_unresolved", condition=Q(certainty=Certainty.MAYBE_SENT)
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=["operation", "step", "generation"], name="one_effect_a_step"),
            models.CheckConstraint(
                name="effect_outside_has_its_intent",
                condition=Q(kind="local", certainty=Certainty.CONFIRMED)
                | Q(kind="outside", request__isnull=False, sent_at__isnull=False) & ~Q(key=""),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.step} of {self.operation_id}"


class EffectEvidence(models.Model):
    """What a run learned of an effect when it held the claim no more. Insert-only; changes nothing itself."""

    operation = models.ForeignKey(Operation, models.CASCADE, related_name="evidence")
    step = models.CharField(max_length=50)
    generation = models.PositiveSmallIntegerField()
    run = models.PositiveIntegerField()
    certainty = models.CharField(max_length=20, choices=Certainty)
    content = models.JSONField(null=True)
    at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"{self.certainty}: {self.step} of {self.operation_id}, run {self.run}"


class ResourceLock(models.Model):
    """Who works on a resource, for jobs whose lock must survive Redis. A row that is over holds nothing."""

    resource = models.CharField(max_length=200, primary_key=True)
    token = models.UUIDField()
    operation_id = models.UUIDField()
    worker = models.CharField(max_length=100)
    since = models.DateTimeField()
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.resource} held by {self.worker}"


class ResourceSequence(models.Model):
    """The next place in line for a resource. A row of its own, so that accepts never wait for a finish."""

    resource = models.CharField(max_length=200, primary_key=True)
    next_seq = models.BigIntegerField(default=1)

    def __str__(self) -> str:
        return f"{self.resource} next {self.next_seq}"


class AfterCommit(models.Model):
    """What a move owes the outside: written with it, deleted when done, repeated by the relay until then."""

    operation = models.ForeignKey(  # null: a transaction outside operations has changed what is cached
        Operation, models.DO_NOTHING, related_name="+", db_constraint=False, db_index=False, null=True
    )
    invalidate = models.JSONField(default=list)  # names of cached values
    resource = models.CharField(max_length=200, blank=True)  # release its lock, wake its oldest waiter
    claim_token = models.UUIDField(null=True)  # whose lock it is, and whose mark on cached values
    run_at = models.DateTimeField()
    tries = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"after {self.operation_id}"


class Resolution(models.TextChoices):
    """What became of a dead letter."""

    WAITING = "waiting"  # for a person
    REPLAYING = "replaying"  # its operation goes round again
    REPLAYED_OK = "replayed_ok"
    REPLAYED_FAILED = "replayed_failed"  # a new dead letter tells of that failure
    DISCARDED = "discarded"


UNRESOLVED = (Resolution.WAITING, Resolution.REPLAYING)


class DeadLetter(models.Model):
    """A failed operation that waits for a person."""

    operation = models.ForeignKey(Operation, models.CASCADE, related_name="dead_letters")
    # Copied from the operation, for those behind it in line: their deadlines wait while it lies dead.
    resource = models.CharField(max_length=200, blank=True, db_default="")
    resource_seq = models.BigIntegerField(null=True)
    replayed_at = models.DateTimeField(null=True)
    job_type = models.CharField(max_length=100)
    reason = models.CharField(max_length=30, choices=Reason.choices)
    category = models.CharField(max_length=30, choices=Category.choices)
    error_class = models.CharField(max_length=200, blank=True)
    error_message = models.CharField(max_length=1000, blank=True)
    signature = models.CharField(max_length=64, blank=True)
    dependency = models.CharField(max_length=100, blank=True)
    lock_lost = models.BooleanField(db_default=False)  # before that error: told beside it
    idempotency_key = models.CharField(max_length=255, blank=True)
    attempts = models.PositiveSmallIntegerField()
    runs = models.PositiveIntegerField()
    first_processed_at = models.DateTimeField(null=True)
    last_processed_at = models.DateTimeField(null=True)
    correlation_id = models.CharField(max_length=100, blank=True)
    schema_version = models.PositiveSmallIntegerField()
    traceback = models.TextField(blank=True)
    certainty = models.CharField(max_length=20, blank=True)  # what is known at worst of its effects
    expected = models.BooleanField(default=False)
    reported_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    resolution = models.CharField(max_length=20, choices=Resolution.choices, default=Resolution.WAITING)
    resolved_at = models.DateTimeField(null=True)  # null while the resolution is waiting or replaying

    class Meta:
        permissions = [
            ("replay_deadletter", "Can send a dead letter round again"),
            ("discard_deadletter", "Can discard a dead letter"),
        ]
        indexes = [
            models.Index(
                F("signature"),
                F("id").desc(),
                name="deadletter_waiting",
                condition=Q(resolution=Resolution.WAITING),
            ),
            models.Index(F("id"), name="deadletter_unreported", condition=Q(reported_at__isnull=True)),
            models.Index(
                F("resource"),
                F("resource_seq"),
                name="deadletter_in_line",
                condition=Q(resource_seq__isnull=False),
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["operation"],
                condition=Q(resolved_at__isnull=True),
                name="one_open_dead_letter_an_operation",
            ),
            models.CheckConstraint(
                condition=Q(resolution__in=UNRESOLVED, resolved_at__isnull=True)
                | (~Q(resolution__in=UNRESOLVED) & Q(resolved_at__isnull=False)),
                name="deadletter_resolved_has_a_time",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_type} {self.reason}"


class WorkerNode(models.Model):
    """A process that does the work, as it last reported itself."""

    name = models.CharField(primary_key=True, max_length=150)  # kind, host and process id
    kind = models.CharField(max_length=20, choices=[("worker", "worker"), ("relay", "relay")])
    release = models.CharField(max_length=100)
    job_types = models.JSONField(default=list)  # those in its code, whatever queues it serves
    queues = models.JSONField(default=list)
    slots = models.PositiveSmallIntegerField(default=0)
    started_at = models.DateTimeField(db_default=Now())
    last_seen_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return self.name


class BrokerEpoch(models.Model):
    """Which contents the broker has as far as anybody knows, and which relay counts them. One row."""

    value = models.UUIDField()  # a queue of this name is in the broker as long as nothing was lost
    since = models.DateTimeField(null=True)  # when a loss was noticed last
    counted_by = models.CharField(max_length=150)
    counted_until = models.DateTimeField()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="one_broker_one_epoch")]

    def __str__(self) -> str:
        return str(self.value)


class Canary(models.Model):
    """What is sent through a queue now and then to see whether it comes out: the last one of each queue."""

    queue = models.CharField(primary_key=True, max_length=100)
    token = models.UUIDField(unique=True)  # of the last one sent
    began_at = models.DateTimeField(db_default=Now())  # when the first was sent
    sent_at = models.DateTimeField(db_default=Now())
    answered_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "canaries"

    def __str__(self) -> str:
        return self.queue


class Fault(models.TextChoices):
    """What is wrong with a message that no worker may work on: a closed list, and a metric's label."""

    TOO_LARGE = "too_large"
    NOT_AN_ENVELOPE = "not_an_envelope"
    COMPRESSED = "compressed"
    WRONG_CONTENT_TYPE = "wrong_content_type"
    BAD_HEADERS = "bad_headers"
    NO_TASK = "no_task"
    NO_ID = "no_id"
    NOT_JSON = "not_json"
    WRONG_ARGUMENTS = "wrong_arguments"
    UNKNOWN_TASK = "unknown_task"


class BadMessage(models.Model):
    """What a worker found in a queue and could not read: evidence, cut short; equal ones are counted."""

    queue = models.CharField(max_length=100, blank=True)
    fault = models.CharField(max_length=30, choices=Fault.choices)
    task = models.CharField(max_length=100, blank=True)  # as the message has it
    size = models.BigIntegerField()  # bytes
    sha256 = models.CharField(max_length=64)  # hexadecimal
    envelope = models.JSONField(default=dict)  # content type and headers, those that may hold secrets masked
    head = models.TextField(blank=True)  # the first bytes, what is not ASCII escaped
    worker = models.CharField(max_length=150)  # who found the first
    times = models.PositiveIntegerField(default=1)
    first_seen_at = models.DateTimeField(db_default=Now())
    last_seen_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["sha256", "queue", "fault"], name="one_bad_message_a_kind"),
        ]

    def __str__(self) -> str:
        return f"{self.fault} in {self.queue or 'no queue'}"


class AuditEntry(models.Model):
    """Who did what to which thing, and why. Insert-only: the database refuses to change or delete a row."""

    actor = models.CharField(max_length=150)
    action = models.CharField(max_length=50)
    target = models.CharField(max_length=200, db_index=True)
    reason = models.TextField()
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)
    request_id = models.CharField(max_length=100, blank=True)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        verbose_name_plural = "audit entries"

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.target}"


class ResourceFence(models.Model):
    """The counter that guards a resource: each claim raises it, and a commit with an older one is refused."""

    resource = models.CharField(max_length=200, primary_key=True)
    fence = models.BigIntegerField(default=0)
    applied_version = models.BigIntegerField(null=True)
    applied_by = models.UUIDField(null=True)
    applied_hash = models.CharField(max_length=64, blank=True, default="")

    def __str__(self) -> str:
        return f"{self.resource} fence {self.fence}"


class DependencyState(models.TextChoices):
    """What a breaker lets through. A state that the code does not know counts as half open."""

    CLOSED = "closed"  # everything
    OPEN = "open"  # one probe, when it is due
    HALF_OPEN = "half_open"  # one probe after the other, until enough have succeeded
    RELEASING = "releasing"  # what has waited, oldest first, at a rate


class Dependency(models.Model):
    """An outside service as its callers find it: the state of its breaker, and the window they count in."""

    name = models.CharField(max_length=100, primary_key=True)
    state = models.CharField(max_length=20, choices=DependencyState.choices, default=DependencyState.CLOSED)
    generation = models.PositiveIntegerField(default=1)
    changed_at = models.DateTimeField(db_default=Now())  # when this generation began
    reason = models.CharField(max_length=300, blank=True, default="")  # what was heard last

    window_ends_at = models.DateTimeField(db_default=Now())
    calls = models.PositiveIntegerField(default=0)
    failures = models.PositiveIntegerField(default=0)
    retries = models.PositiveIntegerField(default=0)  # granted in this window

    probe_at = models.DateTimeField(null=True)  # not before
    probe_token = models.UUIDField(null=True)  # of the claim that is the probe
    probe_expires_at = models.DateTimeField(null=True)
    probes_failed = models.PositiveIntegerField(default=0)  # in a row
    probes_succeeded = models.PositiveIntegerField(default=0)  # in a row

    class Meta:
        verbose_name_plural = "dependencies"
        constraints = [
            models.CheckConstraint(
                name="dependency_probe_has_a_lease",
                condition=Q(probe_token__isnull=True, probe_expires_at__isnull=True)
                | Q(probe_token__isnull=False, probe_expires_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.state}"


class JobControl(models.Model):
    """What a person has ordered for a job type, a queue or an owner; the last order counts."""

    scope = models.CharField(max_length=150, primary_key=True)  # "job_type:inventory.sync", "owner:7"
    job_types = ArrayField(models.CharField(max_length=100), default=list, blank=True)  # empty: all
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, null=True, related_name="+")
    paused = models.BooleanField(default=False)
    accepting = models.BooleanField(default=True)
    rate_per_minute = models.PositiveIntegerField(null=True)  # null: as fast as it goes
    backoff_factor = models.FloatField(default=1.0)  # what the pauses between attempts are multiplied by
    reason = models.CharField(max_length=300, blank=True, default="")
    actor = models.CharField(max_length=150, blank=True, default="")
    changed_at = models.DateTimeField(db_default=Now())

    class Meta:
        permissions = [("control_jobcontrol", "Can pause, limit and stop jobs")]
        constraints = [
            models.CheckConstraint(
                name="jobcontrol_numbers_make_sense",
                condition=(Q(rate_per_minute__isnull=True) | Q(rate_per_minute__gte=1))
                & Q(backoff_factor__gt=0),
            ),
        ]

    def __str__(self) -> str:
        return self.scope


class CacheOrder(models.Model):
    """What a person has ordered for a kind of cached value; what is null is as declared."""

    cache = models.CharField(max_length=100, primary_key=True)  # "inventory:view"
    soft_seconds = models.FloatField(null=True)
    jitter = models.FloatField(null=True)  # 0 to 1
    revalidate = models.BooleanField(default=True)  # serve what is stale while it is rebuilt
    reason = models.CharField(max_length=300)
    actor = models.CharField(max_length=150)
    changed_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="cacheorder_numbers_make_sense",
                condition=(Q(soft_seconds__isnull=True) | Q(soft_seconds__gt=0))
                & (Q(jitter__isnull=True) | Q(jitter__gte=0, jitter__lte=1)),
            ),
        ]

    def __str__(self) -> str:
        return self.cache


class HoldKind(models.TextChoices):
    """Why work is not handed out; the last one is why it is not even taken."""

    BREAKER = "breaker"
    RELEASE = "release"
    PAUSE = "pause"
    RATE = "rate"
    REFUSE = "refuse"


class Hold(models.Model):
    """A time in which work of some job types, or of an owner, is not handed out. Kept: deadlines count it."""

    scope = models.CharField(max_length=150)
    kind = models.CharField(max_length=20, choices=HoldKind.choices)
    job_types = ArrayField(models.CharField(max_length=100), default=list, blank=True)  # empty: all
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, null=True, related_name="+", db_index=False
    )
    began_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True)
    per_second = models.FloatField(default=0)  # what passes nevertheless; 0: nothing
    paced_until = models.DateTimeField(db_default=Now())  # what has passed used up the rate until then
    reason = models.CharField(max_length=300, blank=True, default="")
    actor = models.CharField(max_length=150, blank=True, default="")

    class Meta:
        indexes = [models.Index(F("ended_at"), name="hold_ended")]
        constraints = [
            models.UniqueConstraint(
                fields=["scope", "kind"], condition=Q(ended_at__isnull=True), name="one_open_hold_a_kind"
            ),
            models.CheckConstraint(condition=Q(per_second__gte=0), name="hold_rate_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.scope}"

    @cached_property
    def dependency(self) -> Dependency | None:
        """The one whose breaker opened it."""
        return Dependency.objects.filter(name=self.scope.removeprefix("dependency:")).first()
