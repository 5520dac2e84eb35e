"""What a master is told at its start, as one frozen value."""

from __future__ import annotations

from pathlib import Path

import msgspec

from clutch.wire.api import UPLOAD_MAX_BYTES

PORT = 8620


class MasterSettings(msgspec.Struct, frozen=True, kw_only=True):
    data: Path
    """Its folder: SQLite files, code, keys. With PostgreSQL nothing durable is in it but the key that is also given."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: the port used last time, or the first free one from 8620 on."""
    db: str = ""
    """Empty: SQLite in ``data``; else ``postgresql://...``."""
    blobs: str = ""
    """Where code and files live; empty: a folder in ``data``."""
    cluster: str = "clutch"
    url: str = ""
    """How others reach it; empty: from host and port."""
    tls_cert: str = ""
    tls_key: str = ""
    upload_max_bytes: int = UPLOAD_MAX_BYTES
    output_max_age_s: float = 30 * 86400.0
    output_max_bytes: int = 50 * 2**30
    node_lost_after_s: float = 90.0
    insecure: bool = False
    """Listen beyond loopback without TLS; said aloud or refused."""
    pools_file: str = ""
    """TOML: pools and where their machines come from."""
    master_key: str = ""
    """Seals secrets and signs members' tokens; empty: made once and kept in ``data`` (0600)."""
