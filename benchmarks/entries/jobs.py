"""The job of our side: one row, no outside call, a resource and a cached value for each user."""

from typing import Any

from rest_framework import serializers

from benchmarks.entries.models import write
from operations.jobs import Backoff, OwnerID, Payload, job


class EntryRequest(Payload):
    """The line to write."""

    user_id = OwnerID()
    note = serializers.CharField(max_length=200)
    amount = serializers.IntegerField(min_value=0)


@job(
    "entries.write",
    route="entries",
    payload=EntryRequest,
    resource="entries:user:{user_id}",
    invalidates=["entries:view:{user_id}"],
    retry=Backoff(5, 15, 45),
)
def write_entry(run: Any, answer: None, *, user_id: int, note: str, amount: int) -> None:
    """Write one line into a user's book."""
    write(user_id=user_id, note=note, amount=amount)
