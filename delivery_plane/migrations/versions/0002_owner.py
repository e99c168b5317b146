"""The owner of a ledger; and one index less, which the unique (delivery, number) made needless."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the table; who opens the ledger first with a platform's key becomes its owner."""
    op.create_table(
        "owner",
        sa.Column("public_key", sa.String(), primary_key=True),
        sa.Column("since", sa.String(), nullable=False),
    )
    op.drop_index("ix_entry_delivery_id", table_name="entry")
