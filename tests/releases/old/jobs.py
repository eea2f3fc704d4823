"""A person is greeted by one name."""

from typing import Any

from rest_framework import serializers

from operations.jobs import Payload, job


class Greet(Payload):
    """Whom to greet."""

    name = serializers.CharField()


@job("release.greet", route="release/greet", payload=Greet)
def greet(run: Any, answer: Any, *, name: str) -> dict[str, str]:
    """Greet somebody."""
    return {"greeting": f"Hello {name}", "release": "old"}
