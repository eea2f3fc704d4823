"""What the project keeps of a request."""

import uuid

from django.conf import settings
from django.db import models


class Job(models.Model):
    """Something to be done in the background."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE)
    payload = models.JSONField()
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return str(self.id)


class JobEvent(models.Model):
    """What happened to it."""

    job = models.ForeignKey(Job, models.CASCADE, related_name="events")
    name = models.CharField(max_length=30)
    at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name
