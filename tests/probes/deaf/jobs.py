"""A remote command that holds up a worker's event loop, as an endless read would; read like jobs are."""

import time
from typing import Any

from celery.worker.control import control_command


@control_command(args=[("seconds", float)])
def hang(state: Any, seconds: float) -> None:
    """Sleep where every message is taken and every result heard."""
    time.sleep(seconds)
