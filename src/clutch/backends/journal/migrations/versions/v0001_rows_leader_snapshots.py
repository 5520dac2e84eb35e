"""Rows, the leader row with both ends of the chain, and snapshots in pieces."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_big_key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "journal",
        sa.Column("seq", _big_key, primary_key=True, autoincrement=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("checksum", sa.BigInteger(), nullable=False),
    )
    leader = op.create_table(
        "leader",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("base_index", sa.BigInteger(), nullable=False),
        sa.Column("base_checksum", sa.BigInteger(), nullable=False),
        sa.Column("last_index", sa.BigInteger(), nullable=False),
        sa.Column("last_checksum", sa.BigInteger(), nullable=False),
    )
    zeroes = dict.fromkeys(("term", "base_index", "base_checksum", "last_index", "last_checksum"), 0)
    op.bulk_insert(leader, [{"id": 1, "generation": 1, "holder": "", "expires_at": 0.0, **zeroes}])
    op.create_table(
        "snapshots",
        sa.Column("id", _big_key, primary_key=True, autoincrement=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("checksum", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "snapshot_pieces",
        sa.Column("id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("piece", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
    )


def downgrade() -> None:
    for name in ("snapshot_pieces", "snapshots", "leader", "journal"):
        op.drop_table(name)
