"""Creates the table of the outbox, with the columns that the relay reads."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    operations = [  # noqa: RUF012  Django's own form
        migrations.CreateModel(
            name="OutboxRow",
            fields=[
                ("number", models.BigAutoField(primary_key=True, serialize=False)),
                ("id", models.TextField()),
                ("topic", models.TextField()),
                ("key", models.BinaryField(null=True)),
                ("value", models.BinaryField()),
                ("options", models.TextField(default="{}")),
                ("created_ms", models.BigIntegerField()),
                ("refused", models.TextField(null=True)),
            ],
            options={"db_table": "gossipq_outbox"},
        )
    ]
