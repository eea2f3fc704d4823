"""Know a client by its token, without asking the database each time."""

import time
from typing import Any

from django.conf import settings
from rest_framework.authentication import TokenAuthentication

MOST_REMEMBERED = 10_000  # tokens a process; at that many it forgets them all and begins again


class RememberedTokenAuthentication(TokenAuthentication):
    """Token authentication that believes what it saw for TOKEN_MEMORY_SECONDS.

    So a token that is revoked, or a user who is deactivated, may be let in that much longer, and no more.
    """

    _seen: dict[str, tuple[float, Any]] = {}

    def authenticate_credentials(self, key: str) -> Any:
        """Give (user, token).

        Raises:
            rest_framework.exceptions.AuthenticationFailed: the token or its user is not known or not active.
        """
        until, known = self._seen.get(key, (0.0, None))
        if time.monotonic() < until:
            return known
        known = super().authenticate_credentials(key)
        if len(self._seen) >= MOST_REMEMBERED:
            self._seen.clear()
        self._seen[key] = (time.monotonic() + settings.TOKEN_MEMORY_SECONDS, known)
        return known
