"""Who has overtaken whom in a resource's line is found by its place in it. Others are in no such index."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("operations", "0005_lock_lost")]

    operations = [
        migrations.AddIndex(
            "operation",
            models.Index(
                models.F("resource"),
                models.F("resource_seq"),
                condition=models.Q(resource_seq__isnull=False),
                name="operation_in_line",
            ),
        ),
    ]
