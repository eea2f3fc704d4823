"""Users of a stack: those with a token of the API, and the one who may do everything in the admin."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from deploy.local.stack import Stack

# Runs inside the product, so that users and tokens are made as the product makes them.
MAKE = """
import json
from django.contrib.auth.models import User
from rest_framework.authtoken.models import Token
users = [User.objects.get_or_create(username=name)[0] for name in {names!r}]
print(json.dumps([[user.id, user.username, Token.objects.get_or_create(user=user)[0].key] for user in users]))
"""

ADMIN = ("admin", "admin-password-of-this-machine")
MAKE_ADMIN = """
from django.contrib.auth.models import User
admin, _ = User.objects.get_or_create(username={name!r})
admin.is_staff = admin.is_superuser = True
if not admin.check_password({password!r}):
    admin.set_password({password!r})  # ends the sessions of whoever is logged in, so only if it must be
admin.save()
"""


class Person(NamedTuple):
    """A user who may use the API."""

    id: int
    name: str
    token: str


def make(stack: Stack, names: Sequence[str]) -> list[Person]:
    """Make the users that are not there yet, and give them all in the order of their names."""
    printed = stack.manage("shell", "--no-imports", "--command", MAKE.format(names=list(names)))
    return [Person(*person) for person in json.loads(printed.splitlines()[-1])]


def make_admin(stack: Stack) -> tuple[str, str]:
    """Make the superuser if need be, and give name and password."""
    name, password = ADMIN
    stack.manage("shell", "--no-imports", "--command", MAKE_ADMIN.format(name=name, password=password))
    return ADMIN
