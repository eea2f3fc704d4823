"""The Celery application. Its settings are those of settings.py that begin with CELERY_."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("teguh")
app.config_from_object("django.conf:settings", namespace="CELERY")
