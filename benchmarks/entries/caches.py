"""What is read: how many lines a user's book has, and their sum."""

from django.db.models import Count, Sum

from benchmarks.entries.models import Entry
from operations.cache import Cached


def load(user_id: int) -> dict[str, int]:
    """Read {lines, amount}."""
    found = Entry.objects.filter(user_id=user_id).aggregate(lines=Count("id"), amount=Sum("amount"))
    return {"lines": found["lines"], "amount": found["amount"] or 0}


view = Cached("entries:view", parts=("user_id",), load=load, ttl_seconds=600)
