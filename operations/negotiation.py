"""Agree with a client on the form of its answer, at once where there is nothing to weigh."""

from collections.abc import Iterable
from typing import Any

from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

ANYTHING = frozenset({"", "*/*", "application/json"})


class Negotiation(DefaultContentNegotiation):
    """DRF's own, which weighs every Accept header as if there were many forms to choose from."""

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> Any:
        """Give (renderer, media type).

        Raises:
            rest_framework.exceptions.NotAcceptable: the client wants nothing that we have.
        """
        first, *others = renderers
        if not others and first.media_type in ANYTHING and request.META.get("HTTP_ACCEPT", "") in ANYTHING:
            return first, first.media_type
        return super().select_renderer(request, renderers, format_suffix)
