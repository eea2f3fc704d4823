"""A dead letter says whether the run had lost its resource's lock before it failed."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("operations", "0005_deadlines")]

    operations = [
        migrations.AddField("deadletter", "lock_lost", models.BooleanField(db_default=False)),
    ]
