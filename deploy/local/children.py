"""Child processes that cannot outlive the process that started them."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h
CLONE_NEWUSER = 0x10000000  # linux/sched.h
UID_IN_NAMESPACE = 1000  # any but 0, which is the uid that PostgreSQL refuses

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Identity:
    """Who a child runs as."""

    name: str
    uid: int | None = None
    gid: int | None = None
    own_namespace: bool = False


MYSELF = Identity("the user who started it")


class NotMainThread(RuntimeError):
    """A child would be killed as soon as the thread that started it ends."""


def spawn(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    log: Path,
    death_signal: signal.Signals,
    identity: Identity = MYSELF,
    cwd: Path | None = None,
    keep_open: Sequence[int] = (),
) -> "subprocess.Popen[bytes]":
    """Start a command in a session of its own; it gets `death_signal` when its launcher is gone.

    Its own session keeps the terminal's Ctrl-C away from it: whoever started it stops it, in order.

    Args:
        command: Program and arguments.
        env: The whole environment; nothing is inherited.
        log: File that gets stdout and stderr, appended.
        death_signal: What the kernel sends when the launcher has died, however it died.
        identity: Who the child runs as.
        cwd: Where it runs; None means here.
        keep_open: File descriptors that the child inherits.

    Raises:
        NotMainThread: Called from another thread. See Note [The launcher is a thread].
        PermissionError: The identity may not run the program.
        subprocess.SubprocessError: The machine refuses the identity its own user namespace.
    """
    if threading.current_thread() is not threading.main_thread():
        raise NotMainThread(f"start {command[0]} from the main thread")

    with log.open("ab") as output:
        return subprocess.Popen(
            [str(part) for part in command],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=tuple(keep_open),
            preexec_fn=_tether(death_signal, identity),
            user=identity.uid,
            group=identity.gid,
            extra_groups=_groups(identity),
        )


def run(
    command: Sequence[str | Path], *, env: Mapping[str, str], identity: Identity = MYSELF
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end as somebody; raises like spawn."""
    return subprocess.run(
        [str(part) for part in command],
        env=dict(env),
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=_tether(signal.SIGKILL, identity),
        user=identity.uid,
        group=identity.gid,
        extra_groups=_groups(identity),
    )


# Note [The launcher is a thread]
# PR_SET_PDEATHSIG fires when the *thread* that forked ends, not when its process does. A child started from
# a worker thread would be killed when that thread returns, so only the main thread may start children.
# The signal is cleared by a change of user: it is set last, after the uid and the namespace are. If the
# launcher died between fork and prctl nobody would tell us: hence the look at the parent afterwards.


def _tether(death_signal: signal.Signals, identity: Identity) -> Callable[[], None]:
    launcher, uid, gid = os.getpid(), os.getuid(), os.getgid()

    def in_child() -> None:
        if identity.own_namespace:
            _enter_own_namespace(uid, gid)
        if sys.platform == "linux":
            _libc.prctl(PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != launcher:
            os._exit(1)

    return in_child


def _enter_own_namespace(uid: int, gid: int) -> None:
    if _libc.unshare(CLONE_NEWUSER) != 0:
        raise PermissionError(ctypes.get_errno(), "no user namespace for us")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/gid_map").write_text(f"{UID_IN_NAMESPACE} {gid} 1")
    Path("/proc/self/uid_map").write_text(f"{UID_IN_NAMESPACE} {uid} 1")


def _groups(identity: Identity) -> list[int] | None:
    return None if identity.uid is None else []
