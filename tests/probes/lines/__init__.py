"""An app for EXTRA_APPS: jobs that share a resource. Their handlers write blindly: only guards help."""

EXTRA_APPS = "tests.probes,tests.probes.lines"
VERBS = ("probe.hold", "probe.turn", "probe.version", "probe.stated")
TABLE = """
    CREATE TABLE probe_line (
        id bigint GENERATED ALWAYS AS IDENTITY,
        what text, operation_id uuid, run int, fence bigint, seen text)"""
