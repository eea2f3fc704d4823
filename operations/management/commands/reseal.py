"""python manage.py reseal: seal anew, by the first of PAYLOAD_KEYS, what older keys have sealed."""

import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from operations import secrecy
from operations.models import OperationData

BATCH = 200  # rows a transaction


class Command(BaseCommand):
    """Rotate the keys of what is stored sealed; when it has ended well, the older keys may go."""

    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print {resealed, unreadable} for a program")

    def handle(self, *, json: bool, **options: Any) -> None:
        counts = {"resealed": 0, "unreadable": 0}
        sealed = OperationData.objects.filter(payload__icontains=f'"{secrecy.SEALED}"')
        last = None
        while ids := list(_after(sealed, last).values_list("operation_id", flat=True)[:BATCH]):
            last = ids[-1]
            _reseal(ids, counts)
            if not json:
                print(f"{counts['resealed']} resealed", file=sys.stderr)
        self.stdout.write(_told(counts, as_json=json))
        if counts["unreadable"]:
            raise CommandError(f"{counts['unreadable']} open with none of PAYLOAD_KEYS: keep the older keys")


def _after(sealed: Any, last: Any) -> Any:
    found = sealed.order_by("operation_id")
    return found if last is None else found.filter(operation_id__gt=last)


def _reseal(ids: list[Any], counts: dict[str, int]) -> None:
    with transaction.atomic():
        for row in OperationData.objects.select_for_update().filter(operation_id__in=ids):
            try:
                payload = secrecy.resealed(row.payload)
            except secrecy.Unreadable:
                counts["unreadable"] += 1
                continue
            OperationData.objects.filter(operation_id=row.operation_id).update(payload=payload)
            counts["resealed"] += 1


def _told(counts: dict[str, int], *, as_json: bool) -> str:
    if as_json:
        return json.dumps(counts)
    return ", ".join(f"{number} {what}" for what, number in counts.items())
