"""An app for EXTRA_APPS: a job that lives as it is told and marks what it wrote, and traps for processes."""

PAUSE_SECONDS = 0.5  # between attempts, before jitter
TABLE = """
    CREATE TABLE probe_mark (
        id bigint GENERATED ALWAYS AS IDENTITY, ref text, what text, operation_id uuid, run int,
        resource text, fence bigint)"""
