"""The middleware of the admin, and the API that it leaves alone."""

import pytest
from django.conf import settings
from django.contrib.sessions.middleware import SessionMiddleware

from config import pages

pytestmark = pytest.mark.django_db


class TestPagesOnly:
    def test_looks_at_no_cookie_of_an_api_request(self, api, monkeypatch):
        monkeypatch.setattr(SessionMiddleware, "process_request", lambda *_: pytest.fail("it was looked at"))

        assert api.get("/v1/inventory").status_code == 200

    def test_gives_an_api_request_no_session_and_no_user_of_the_admin(self, admin_client):
        assert admin_client.get("/admin/").status_code == 200
        assert admin_client.get("/v1/inventory").status_code == 401

    def test_keeps_forms_of_the_admin_from_strangers(self, client):
        client.handler.enforce_csrf_checks = True

        assert client.post("/admin/login/", {"username": "ayu", "password": "x"}).status_code == 403

    @pytest.mark.parametrize("name", ["Session", "Csrf", "Authentication", "Messages"])
    def test_is_in_place(self, name):
        assert f"config.pages.{name}" in settings.MIDDLEWARE
        assert issubclass(getattr(pages, name), pages.PagesOnly)
