"""The Django app."""

from django.apps import AppConfig


class BaselineConfig(AppConfig):
    name = "benchmarks.baseline"
    label = "baseline"
    default_auto_field = "django.db.models.BigAutoField"
