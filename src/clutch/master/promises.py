"""Which of the promises P1 to P8 hold for a master with these settings, and to what extent, in words. Pure."""

from __future__ import annotations

from clutch.master.settings import MasterSettings

LOOPBACK = ("127.", "::1", "localhost")
OBJECT_STORES = ("s3://", "gs://", "az://", "azure://", "abfs://")


def promises(settings: MasterSettings, blob_copies: int = 0) -> dict[str, str]:
    """By number. ``blob_copies``: how many each blob has at least, where they are on agents' disks."""
    return {
        "P1": _durable(settings, blob_copies),
        "P2": "At most one incarnation of a member can write: every write carries its fence.",
        "P3": "Every resource is accounted for at every event.",
        "P4": "Preemption gives work its window; what is lost is at most what came after its last checkpoint.",
        "P5": _control_plane(settings),
        "P6": "Reporting never blocks training: it spools on the node, within a bound.",
        "P7": _closed(settings),
        "P8": "The same seed gives the same decisions.",
    }


def _durable(settings: MasterSettings, blob_copies: int) -> str:
    shared = settings.blobs.startswith(OBJECT_STORES)
    if not settings.db.startswith("postgres"):
        return (
            "What was acknowledged survives a crash or power cut of any process, not the loss of this machine (SQLite)."
        )
    blobs = "an object store" if shared else "a folder of this machine, so uploaded code is lost with it"
    if settings.blobs == "agents:":
        said = {0: "some out of reach now", 1: "one copy of some now: a machine lost now may lose them"}
        blobs = f"the agents' disks ({said.get(blob_copies, f'{blob_copies} copies of each')})"
    return f"What was acknowledged survives the loss of this machine (PostgreSQL); blobs are in {blobs}."


def _control_plane(settings: MasterSettings) -> str:
    if settings.db.startswith("postgres"):
        return "A restart kills no work, and another master on the same database takes over when this one is lost."
    return "A restart kills no work; there is no standby (SQLite), so nothing new starts while this master is away."


def _closed(settings: MasterSettings) -> str:
    reach = "only this machine can reach it" if settings.host.startswith(LOOPBACK) else f"it listens on {settings.host}"
    how = "with TLS" if settings.tls_cert else "without TLS"
    return f"Every route needs a token; {reach}, {how}."
