"""A person is greeted by first and last name, and what is sent can be had back."""

from typing import Any

from rest_framework import serializers

from operations.jobs import Payload, job


class Greet(Payload):
    """Whom to greet."""

    first = serializers.CharField()
    last = serializers.CharField()


class Echo(Payload):
    """Values that have a text of their own."""

    amount = serializers.CharField()
    id = serializers.CharField()
    at = serializers.CharField()


def in_two_names(payload: dict[str, Any]) -> dict[str, Any]:
    """Take up a payload of version 1."""
    first, _, last = payload["name"].partition(" ")
    return {"first": first, "last": last}


@job("release.greet", route="release/greet", payload=Greet, schema_version=2, upgrade={1: in_two_names})
def greet(run: Any, answer: Any, *, first: str, last: str) -> dict[str, str]:
    """Greet somebody."""
    return {"greeting": f"Hello {first} {last}", "release": "new"}


@job("release.echo", route="release/echo", payload=Echo)
def echo(run: Any, answer: Any, **values: str) -> dict[str, str]:
    """Give back what was sent."""
    return values
