"""What is not ours, replaced: the inventory provider, at the far end of the real HTTP client."""

from collections import deque
from typing import Any

import httpx


class StandInProvider:
    """Answers as it was told, in order, the last answer for ever; remembers what it was asked."""

    def __init__(self):
        self.asked: list[httpx.Request] = []
        self._answers: deque[Any] = deque()

    def answers(self, *answers: httpx.Response | Exception) -> None:
        self._answers.extend(answers)

    def has(self, version: int, **items: int) -> None:
        """Own these things from now on, at this version."""
        self._answers.clear()
        self._answers.append((version, items))

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = self._answers.popleft() if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return snapshot(request, *answer) if isinstance(answer, tuple) else answer


def snapshot(request: httpx.Request, version: int, items: dict[str, int]) -> httpx.Response:
    user_id = int(request.url.path.split("/")[3])
    owned = [{"sku": sku, "quantity": quantity} for sku, quantity in items.items()]
    return httpx.Response(200, json={"user_id": user_id, "version": version, "items": owned})
