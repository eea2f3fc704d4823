"""Django's middleware for what people look at, kept out of the API's way: it has no cookies and no forms."""

from typing import Any

from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.messages.middleware import MessageMiddleware
from django.contrib.sessions.middleware import SessionMiddleware
from django.http import HttpRequest
from django.middleware.csrf import CsrfViewMiddleware
from django.utils.deprecation import MiddlewareMixin

API = "/v1/"


class PagesOnly(MiddlewareMixin):
    """Pass a request of the API on untouched."""

    def __call__(self, request: HttpRequest) -> Any:
        of_the_api = request.path_info.startswith(API)
        return self.get_response(request) if of_the_api else super().__call__(request)


class Session(PagesOnly, SessionMiddleware):
    """Who is logged in, by a cookie."""


class Csrf(PagesOnly, CsrfViewMiddleware):
    """Forms that are ours."""


class Authentication(PagesOnly, AuthenticationMiddleware):
    """The user of the session; the API has its own, by token."""


class Messages(PagesOnly, MessageMiddleware):
    """What the admin says after an act."""
