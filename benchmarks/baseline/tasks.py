"""The Celery task."""

from benchmarks.baseline.celery import app
from benchmarks.entries.models import write


@app.task(name="write_entry")
def write_entry(user_id: int, note: str, amount: int) -> None:
    write(user_id=user_id, note=note, amount=amount)
