"""What Django cannot say of a table: room for updates in place, eager vacuum, and history that nobody rewrites."""

from django.db import migrations

HOT = "fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 1"
HOT_TABLES = ("operations_operation", "operations_aftercommit", "operations_resourcefence")
APPEND_ONLY = ("operations_transition", "operations_auditentry")

REFUSE = """
CREATE FUNCTION operations_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'restrict_violation';
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("operations", "0001_initial")]

    operations = [
        *(
            migrations.RunSQL(
                f"ALTER TABLE {table} SET ({HOT})",
                f"ALTER TABLE {table} RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_cost_delay)",
            )
            for table in HOT_TABLES
        ),
        migrations.RunSQL(REFUSE, "DROP FUNCTION operations_refuse_change()"),
        *(
            migrations.RunSQL(
                f"CREATE TRIGGER append_only BEFORE UPDATE ON {table}"
                " FOR EACH ROW EXECUTE FUNCTION operations_refuse_change()",
                f"DROP TRIGGER append_only ON {table}",
            )
            for table in APPEND_ONLY
        ),
        migrations.RunSQL(
            "CREATE TRIGGER undeletable BEFORE DELETE ON operations_auditentry"
            " FOR EACH ROW EXECUTE FUNCTION operations_refuse_change()",
            "DROP TRIGGER undeletable ON operations_auditentry",
        ),
    ]
