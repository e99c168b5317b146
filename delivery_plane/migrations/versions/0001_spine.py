"""The tables of release 0.1.0: entries and fences."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make them; a database that release 0.1.0 wrote has them and is only marked."""
    op.create_table(
        "entry",
        sa.Column("id", sa.Integer(), primary_key=True),
        *(
            sa.Column(name, kind, nullable=name == "stage")
            for name, kind in (
                ("delivery_id", sa.String()),
                ("number", sa.Integer()),
                ("type", sa.String()),
                ("kind", sa.String()),
                ("stage", sa.String()),
                ("attempt", sa.Integer()),
                ("visibility", sa.String()),
                ("actor", sa.String()),
                ("recorded_at", sa.String()),
                ("idempotency_key", sa.String()),
                ("payload", sa.String()),
                ("prev_hash", sa.String()),
                ("hash", sa.String()),
            )
        ),
        sa.UniqueConstraint("delivery_id", "number"),
        sa.UniqueConstraint("delivery_id", "idempotency_key"),
    )
    op.create_index("ix_entry_delivery_id", "entry", ["delivery_id"])
    op.create_table(
        "fence",
        sa.Column("delivery_id", sa.String(), primary_key=True),
        sa.Column("resource", sa.String(), primary_key=True),
        sa.Column("token", sa.Integer(), nullable=False),
    )
