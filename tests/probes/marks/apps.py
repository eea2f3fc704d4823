"""Lay the traps when Django starts, in whatever process that is."""

from django.apps import AppConfig

from tests.probes.marks import traps


class MarksConfig(AppConfig):
    name = "tests.probes.marks"

    def ready(self) -> None:
        traps.lay()
