"""How Alembic runs these migrations: on the connection, and in the transaction, that `database.py` hands over."""

from alembic import context
from sqlmodel import SQLModel

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    # SQLite cannot alter most of a table; Alembic then builds it anew.
    render_as_batch=True,
)
context.run_migrations()
