"""Dead letters remember their place in line and when they were replayed: deadlines wait behind the dead."""

from django.db import migrations, models

FILL = """
    UPDATE operations_deadletter AS d SET resource = o.resource, resource_seq = o.resource_seq
    FROM operations_operation AS o WHERE o.id = d.operation_id AND o.resource_seq IS NOT NULL;
    UPDATE operations_deadletter AS d SET replayed_at = (
        SELECT min(t.at) FROM operations_transition AS t
        WHERE t.operation_id = d.operation_id AND t.reason = 'replayed' AND t.at >= d.created_at)
    WHERE d.resolution IN ('replaying', 'replayed_ok', 'replayed_failed');"""


class Migration(migrations.Migration):
    dependencies = [("operations", "0004_locks_in_rows")]

    operations = [
        migrations.AddField("deadletter", "resource", models.CharField(blank=True, db_default="", max_length=200)),
        migrations.AddField("deadletter", "resource_seq", models.BigIntegerField(null=True)),
        migrations.AddField("deadletter", "replayed_at", models.DateTimeField(null=True)),
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
        migrations.AddIndex(
            "deadletter",
            models.Index(
                models.F("resource"),
                models.F("resource_seq"),
                condition=models.Q(resource_seq__isnull=False),
                name="deadletter_in_line",
            ),
        ),
    ]
