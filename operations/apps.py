"""Start-up: read every app's jobs.py and caches.py once all models exist."""

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class OperationsConfig(AppConfig):
    name = "operations"

    def ready(self) -> None:
        autodiscover_modules("jobs", "caches", "checks")
