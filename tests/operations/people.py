"""Who opens the admin: a browser each, with the permissions that a test names and no others."""

from django.contrib.auth.models import Permission, User
from django.test import Client

from tests.factories import numbers

EVERYTHING_TO_SEE = "view everything"


def browser(*codenames: str, superuser: bool = False, is_staff: bool = True, **headers: str) -> Client:
    """Log a new person in; EVERYTHING_TO_SEE stands for every view permission."""
    user = User.objects.create(username=f"staff-{next(numbers)}", is_staff=is_staff, is_superuser=superuser)
    wanted = Permission.objects.filter(codename__in=codenames)
    if EVERYTHING_TO_SEE in codenames:
        wanted |= Permission.objects.filter(codename__startswith="view_")
    user.user_permissions.set(wanted)
    client = Client(headers=headers)
    client.force_login(user)
    client.user = user
    return client
