"""The reads of what a user owns, which are three queries; as little around them as may be."""

from django.core.cache import cache
from django.http import HttpRequest, HttpResponse, JsonResponse

from inventory import caches

KEPT_SECONDS = 600


def cached(request: HttpRequest, user_id: int) -> HttpResponse:
    """Read through our cache."""
    return JsonResponse(caches.view.get(user_id))


def bare(request: HttpRequest, user_id: int) -> HttpResponse:
    """Read through django-redis, with nothing that guards it."""
    key = f"bare:{user_id}"
    value = cache.get(key)
    if value is None:
        value = caches.load(user_id)
        cache.set(key, value, KEPT_SECONDS)
    return JsonResponse(value)


def query(request: HttpRequest, user_id: int) -> HttpResponse:
    """Read with no cache at all."""
    return JsonResponse(caches.load(user_id))
