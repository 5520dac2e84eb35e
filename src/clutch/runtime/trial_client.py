"""The push API of a trial: what it says to its experiment, and of a detached run to the master that hears of it."""

from __future__ import annotations

from typing import Any

from clutch.runtime.client import PushClient
from clutch.wire.experiment_api import (
    BestValidation,
    EndDetached,
    FinishOperation,
    OperationView,
    SayEarlyExit,
    SayMetadata,
    StorageWay,
)
from clutch.wire.metrics import spoken
from clutch.wire.push import Acknowledged


class TrialClient(PushClient):
    """As ``PushClient``, for a task that is a trial."""

    def operation(self, timeout_s: float) -> OperationView:
        """What to do next; waits at the master while that is not known, at most so long."""
        return self._ask("GET", f"/operation?timeout_s={timeout_s}", OperationView, waits_s=timeout_s)

    def finish_operation(self, length: int, value: float | None) -> None:
        said = FinishOperation(length=length, value=None if value is None else _number(value))
        self._ask("POST", "/operation/done", OperationView, said)

    def early_exit(self, reason: str, detail: str) -> None:
        self._ask("POST", "/early_exit", Acknowledged, SayEarlyExit(reason=reason, detail=detail))

    def put_metadata(self, metadata: dict[str, Any]) -> None:
        """Laid over what is there, key by key; None removes one."""
        self._ask("POST", "/metadata", dict[str, Any], SayMetadata(metadata=metadata))

    def metadata(self) -> dict[str, Any]:
        return self._ask("GET", "/metadata", dict[str, Any])

    def best(self) -> BestValidation:
        return self._ask("GET", "/best", BestValidation)

    def storage_way(self) -> StorageWay:
        return self._ask("GET", "/storage", StorageWay)

    # -- a detached run --------------------------------------------------------------------------------------------

    def heartbeat(self) -> None:
        self._ask("POST", "/heartbeat", Acknowledged)

    def ended(self, *, failed: bool, detail: str) -> None:
        self._ask("POST", "/ended", Acknowledged, EndDetached(failed=failed, detail=detail))


def _number(value: float) -> float | str:
    said = spoken(value)
    return said if isinstance(said, str) else float(said)
