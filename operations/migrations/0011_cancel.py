from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('operations', '0010_reveal'),
    ]

    operations = [
        migrations.AddField(
            model_name='operation',
            name='cancel_requested_at',
            field=models.DateTimeField(null=True),
        ),
    ]
