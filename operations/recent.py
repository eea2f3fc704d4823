"""Keys that this process has just seen accepted: a hint that a request is a repeat, and nothing more.

A repeat that is expected is one look at its key. Otherwise it pays for the acceptance that does not happen.
"""

import threading
from collections import OrderedDict

MOST = 10_000  # keys; two megabytes at most, and some minutes of a busy process

Name = tuple[int, str, str]  # owner, job type, key

_seen: OrderedDict[Name, None] = OrderedDict()
_lock = threading.Lock()


def note(owner_id: int, job_type: str, key: str) -> None:
    """Remember that a key names an operation."""
    with _lock:
        _seen[(owner_id, job_type, key)] = None
        _seen.move_to_end((owner_id, job_type, key))
        if len(_seen) > MOST:
            _seen.popitem(last=False)


def has(owner_id: int, job_type: str, key: str) -> bool:
    return (owner_id, job_type, key) in _seen
