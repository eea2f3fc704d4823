"""python manage.py locks: who holds which resource, since when, and whether that claim is alive."""

import getpass
import json
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models.functions import Now

from operations.models import AuditEntry, Operation, Status
from tasks import after_commit, lock


class Command(BaseCommand):
    """List the locks that are held; free one whose holder is dead."""

    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--break", dest="resource", default="", help="free this resource if its holder is dead"
        )
        parser.add_argument("--reason", default="", help="why; kept in the audit")
        parser.add_argument("--json", action="store_true", help="print JSON, for programs")

    def handle(self, *, resource: str, reason: str, **options: Any) -> None:
        try:
            if resource:
                self.stdout.write(_break(resource, reason))
                return
            held = [_told(store, name, holder) for store, name, holder in lock.every()]
        except lock.StoreAway as away:
            raise CommandError(f"{away}; nothing is known of the locks until it does") from away
        if options["json"]:
            self.stdout.write(json.dumps(held, indent=2))
            return
        for each in held:
            alive = "alive" if each["alive"] else "dead: --break frees it"
            self.stdout.write(
                f"{each['resource']}  {each['operation_id']} on {each['worker']} since {each['since']}"
                f" ({each['store']}), {alive}"
            )
        self.stdout.write(f"{len(held)} held")


def _told(store: str, resource: str, holder: lock.Holder) -> dict[str, Any]:
    return {"store": store, "resource": resource, **holder._asdict(), "alive": _is_alive(holder)}


def _is_alive(holder: lock.Holder) -> bool:
    claims = Operation.objects.filter(status=Status.PROCESSING, lease_expires_at__gt=Now())
    return claims.filter(id=holder.operation_id, claim_token=holder.token).exists()


def _break(resource: str, reason: str) -> str:
    """Free a lock by its holder's token, so that one taken in between is left alone."""
    if not reason.strip():
        raise CommandError("say why with --reason: it is kept in the audit")
    holder = lock.holder(resource)
    if holder is None:
        raise CommandError(f"nobody holds {resource!r}; `locks` lists what is held")
    if _is_alive(holder):
        raise CommandError(f"{resource!r} is held by {holder}, whose lease lives: it frees the lock itself")
    # Committed before the store is asked, so that no lock is freed without its audit entry.
    AuditEntry.objects.create(
        actor=f"cli:{getpass.getuser()}",
        action="break_lock",
        target=f"resource:{resource}"[:200],
        reason=reason,
        before=holder._asdict(),
    )
    done = lock.free(resource, token=UUID(holder.token))
    after_commit.wake(resource)
    return f"{resource} freed" if done else f"{resource} was freed by somebody else meanwhile"
