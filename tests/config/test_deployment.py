"""A production environment passes Django's own questions, and is HTTPS only."""

import os
import subprocess
import sys

import pytest

from deploy.local.procfile import ROOT

PRODUCTION = {
    "SECRET_KEY": "Zk3v9Qm1xT7wLr5pHs8dYc2bNf6gJa4e-Uo0iEiRtXyVqW-of-the-tests",
    "ALLOWED_HOSTS": "api.example.test",
    "DATABASE_URL": "postgresql://teguh@db.example.test/teguh",
    "METRICS_TOKEN": "of-the-scraper",
    "HTTPS": "true",
}


def check(**changes):
    env = {"PATH": os.environ["PATH"], **PRODUCTION, **changes}
    command = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=60)


class TestCheck:
    def test_is_clean_for_production(self):
        done = check()

        assert done.returncode == 0, done.stderr

    def test_is_not_without_https(self):
        assert "security.W008" in check(HTTPS="false").stderr


class TestHTTPS:
    @pytest.fixture(autouse=True)
    def behind_a_proxy(self, settings):
        settings.SECURE_SSL_REDIRECT = True
        settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

    def test_is_asked_for(self, client):
        answer = client.get("/v1/inventory")

        assert (answer.status_code, answer["Location"]) == (301, "https://testserver/v1/inventory")

    def test_is_believed_of_the_proxy(self, client):
        assert client.get("/v1/inventory", headers={"X-Forwarded-Proto": "https"}).status_code == 401

    def test_is_not_asked_of_who_watches_the_process(self, client):
        assert client.get("/health/live").status_code == 200
