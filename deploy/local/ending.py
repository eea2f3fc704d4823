"""How the commands of this package end."""

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext


def end_on_signals() -> None:
    """Raise KeyboardInterrupt for TERM as for Ctrl-C, also where a shell started us in the background.

    Such a shell has INT ignored, and Python then leaves it so.
    """
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.default_int_handler)


def keys_to_us() -> AbstractContextManager[None]:
    """Have the terminal send its Ctrl-C to this process alone, for a while.

    It goes to everything in the foreground otherwise: make hears it too, and fails however well we end.
    Nothing changes without a terminal, in the background, or where nobody stands between us and the shell.
    """
    terminal = _shared_terminal()
    return nullcontext() if terminal is None else _foreground(terminal)


def _shared_terminal() -> int | None:
    """Give the terminal in whose foreground we are as part of another's process group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError:
        return None
    return terminal if os.tcgetpgrp(terminal) == os.getpgrp() != os.getpid() else None


@contextmanager
def _foreground(terminal: int) -> Iterator[None]:
    """Be a group of our own in the foreground, which Ctrl-Z can't stop: make would wait for it for ever."""
    launchers = os.getpgrp()
    for stopping in (signal.SIGTSTP, signal.SIGTTOU):
        signal.signal(stopping, signal.SIG_IGN)
    os.setpgid(0, 0)
    os.tcsetpgrp(terminal, os.getpgrp())
    try:
        yield
    finally:
        os.tcsetpgrp(terminal, launchers)
