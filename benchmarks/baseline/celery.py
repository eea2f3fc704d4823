"""The Celery application. Its settings are those of settings.py that begin with CELERY_."""

from celery import Celery

app = Celery("baseline")
app.config_from_object("django.conf:settings", namespace="CELERY")
