"""Apps for EXTRA_APPS, each of which takes one guard away or breaks one thing, as sabotage.py says.

They are loaded before there are models, so they name what they do instead of importing it.
"""

from django.apps import AppConfig
from django.utils.module_loading import import_string


class Switch(AppConfig):
    """One a process at most: they share this module's name."""

    name = "tests.probes.switches"

    def ready(self) -> None:
        import_string(f"tests.probes.sabotage.{self.label}")()


class TokenOff(Switch):
    label = "token_off"


class UniqueOff(Switch):
    label = "unique_off"


class BrokenPublish(Switch):
    label = "broken_publish"


class VisibilityUnchecked(Switch):
    label = "visibility_unchecked"


class FenceOff(Switch):
    label = "fence_off"


class AfterCommitOff(Switch):
    label = "after_commit_off"


class LookUpOff(Switch):
    label = "look_up_off"


class AttemptsOff(Switch):
    label = "attempts_off"
