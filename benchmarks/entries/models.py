"""What a request is about. Small, because the benchmark is about everything around it."""

from django.conf import settings
from django.db import models
from django.db.models.functions import Now


class Entry(models.Model):
    """One line in a user's book."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    note = models.CharField(max_length=200)
    amount = models.IntegerField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        app_label = "entries"

    def __str__(self) -> str:
        return f"{self.amount} {self.note}"


def write(*, user_id: int, note: str, amount: int) -> None:
    """Do the domain write: the same statement on both sides."""
    Entry.objects.create(user_id=user_id, note=note, amount=amount)
