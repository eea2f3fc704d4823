"""The Django app, installed on both sides."""

from django.apps import AppConfig


class EntriesConfig(AppConfig):
    name = "benchmarks.entries"
    label = "entries"
    default_auto_field = "django.db.models.BigAutoField"
