"""How each kind of process shows that it is ready."""

from collections.abc import Callable

import httpx

from deploy.local.process import Process


def says(text: str) -> Callable[[Process], bool]:
    """Ready when a text is in its log."""
    return lambda process: text in process.output()


def serves(url: str, *, after: str = "") -> Callable[[Process], bool]:
    """Ready when it says `after`, so that the answer is not another's on its port, and HTTP answers."""
    return lambda process: after in process.output() and _answers(url)


def _answers(url: str) -> bool:
    try:
        httpx.get(url, timeout=5)
    except httpx.TransportError:
        return False
    return True
