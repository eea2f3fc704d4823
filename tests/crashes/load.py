"""What each run asks of a stack: everything that passes a point. And a client that does not give up."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from deploy.local.people import make_admin
from deploy.local.provider_store import Fault
from tests.crashes.lanes import Lab
from tests.faults.lab import PRICE_MINOR, Row, User
from tests.faults.lab import Lab as FaultLab

PATIENCE_SECONDS = 20.0
WAKES_AFTER_SECONDS = 15.0  # at the latest; else when the next run is at work
SNAPSHOT = {"sword": 1, "potion": 5}
SKU, PLENTY = "lamp", 1_000_000

Answer = TypeVar("Answer")


@dataclass
class Load:
    """What was asked, as long as it is remembered: by what name, and under which id it was accepted."""

    owner: User
    rival: User  # whose two syncs contend
    lives: dict[str, str] = field(default_factory=dict)  # ref → id
    hows: dict[str, str] = field(default_factory=dict)  # ref → how
    syncs: list[str] = field(default_factory=list)
    purchases: dict[str, str] = field(default_factory=dict)  # order → id
    rivals: list[str] = field(default_factory=list)

    @property
    def accepted(self) -> list[str]:
        return [*self.lives.values(), *self.syncs, *self.rivals, *self.purchases.values()]

    @property
    def users(self) -> list[int]:
        return [self.owner.id, self.rival.id]

    def live(self, how: str, *, resource: str = "", **times: float) -> str:
        """Ask for a life, and give the name under which it acts."""
        ref = uuid.uuid4().hex
        body = {"ref": ref, "how": how, "resource": resource, **times}
        self.hows[ref] = how
        self.lives[ref] = insist_on(self.owner, "probe/life", body)
        return ref

    def buy(self, method: str = "pm_card_visa") -> str:
        """Ask for a lamp, and give the order's name."""
        order = uuid.uuid4().hex
        body = {
            "order_id": order,
            "sku": SKU,
            "quantity": 1,
            "amount_minor": PRICE_MINOR,
            "currency": "EUR",
            "payment_method": method,
        }
        self.purchases[order] = insist_on(self.owner, "purchases", body)
        return order

    def ref_of(self, how: str) -> str | None:
        return next((ref for ref in self.hows if self.hows[ref] == how), None)


def new_load(lab: Lab) -> Load:
    """Begin with two users who own something and look at it: their cache is warm."""
    load = Load(lab.new_user(), lab.new_user())
    lab.stock(SKU, PLENTY)
    for user in (load.owner, load.rival):
        lab.set_items(user, 1, **SNAPSHOT)
        insist(user.inventory)
    return load


def offer(lab: Lab, when_stalled: Callable[[], object]) -> Load:
    """Ask for one of everything. What loses its lease has begun to before `when_stalled`."""
    load = new_load(lab)
    stalled = load.live("stall", resource=f"probe:{load.owner.id}", seconds=WAKES_AFTER_SECONDS)
    lab.wait_effects(stalled)
    when_stalled()
    lab.provider.fail(Fault(user_id=load.rival.id, times=2, delay_seconds=0.3))
    load.rivals = [insist_on(load.rival, "inventory/sync", {}) for _ in range(2)]
    for how in ("work", "buy", "shy", "falter", "mend", "die"):
        load.live(how)
    load.buy()
    load.syncs = [insist_on(load.owner, "inventory/sync", {})]
    return load


def insist_on(user: User, path: str, body: Row, key: str | None = None, **insistence: Any) -> str:
    """Send a request until it is answered, with one key, as a console does; give the operation's id.

    `insistence` is what `insist` takes.
    """
    key = uuid.uuid4().hex if key is None else key

    def ask() -> str:
        answer = user.post(path, body, key=key)
        if answer.status_code == 409:  # a dead process has it and has not been found out yet
            raise httpx.TransportError("in progress")
        _raise_if_ours(answer)
        assert answer.status_code in (200, 202), answer.text
        return str(answer.json()["operation_id"])

    return insist(ask, **insistence)


def insist(
    ask: Callable[[], Answer],
    *,
    excused: type[httpx.HTTPError] = httpx.TransportError,
    patience_seconds: float = PATIENCE_SECONDS,
) -> Answer:
    """Ask until there is an answer.

    A connection that dies before it says nothing. Nor does an answer of 5xx where the database may be away:
    `excused` is then httpx.HTTPError.
    """
    give_up_at = time.monotonic() + patience_seconds
    while True:
        try:
            return ask()
        except excused:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.05)


def _raise_if_ours(answer: httpx.Response) -> None:
    """Make an error of the server an exception."""
    if answer.is_server_error:
        raise httpx.HTTPStatusError(answer.text[:2_000], request=answer.request, response=answer)


class Operator:
    """Somebody at the admin who mends what failed, and sends it round again."""

    def __init__(self, lab: FaultLab) -> None:
        name, password = make_admin(lab.stack)
        self._lab = lab
        self._admin = httpx.Client(base_url=lab.stack.api_url, timeout=PATIENCE_SECONDS, trust_env=False)
        self._admin.get("/admin/login/").raise_for_status()
        self._post("/admin/login/", username=name, password=password)

    def tend(self, load: Load) -> None:
        """Replay the dead letter of what can be mended, once it has come; again, if that was in vain."""
        ref = load.ref_of("mend")
        if ref is None:
            return
        waiting = self._lab.rows(
            "SELECT id FROM operations_deadletter WHERE operation_id = %s AND resolution = 'waiting'",
            load.lives[ref],
        )
        for letter in waiting:
            self._lab.rows("INSERT INTO probe_mark (ref, what) VALUES (%s, 'mended') RETURNING id", ref)
            try:
                self.replay(letter["id"], reason="mended")
            except httpx.TransportError:
                continue  # the page did not come back; a look at the letter says whether it was done

    def replay(self, letter: int, *, reason: str) -> None:
        """Send a dead letter's operation round again.

        Raises:
            httpx.HTTPError: whether it was done, the letter says.
        """
        self._post("/admin/operations/deadletter/replay/", ids=str(letter), reason=reason)

    def close(self) -> None:
        self._admin.close()

    def _post(self, path: str, **form: str) -> None:
        token = self._admin.cookies["csrftoken"]
        headers = {"Referer": f"{self._lab.stack.api_url}{path}"}
        answer = self._admin.post(path, data={**form, "csrfmiddlewaretoken": token}, headers=headers)
        _raise_if_ours(answer)
        assert answer.status_code == 302, answer.text[:2_000]
