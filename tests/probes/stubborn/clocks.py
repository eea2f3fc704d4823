"""An app for EXTRA_APPS that sets each clock wrong, and no two alike, so that a test sees who goes by it."""

import datetime
import os
import time

from django.apps import AppConfig
from django.utils import timezone

STEP_SECONDS = 10.0
STEPS = 101  # from 500 s behind to 500 s ahead


class ClocksWrong(AppConfig):
    """As far as Python code asks for the time; durations are as they were."""

    name = "tests.probes.stubborn.clocks"
    label = "clocks_wrong"

    def ready(self) -> None:
        wrong = (os.getpid() % STEPS - STEPS // 2) * STEP_SECONDS
        now, wall = timezone.now, time.time
        timezone.now = lambda: now() + datetime.timedelta(seconds=wrong)
        time.time = lambda: wall() + wrong
