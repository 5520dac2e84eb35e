"""What is asked of a master on the way to a checkpoint is asked until it answers."""

from pathlib import Path

from clutch.runtime.cluster_keeper import ClusterKeeper
from clutch.runtime.http import MasterConnection
from clutch.runtime.info import Info
from clutch.runtime.saving import Begun
from clutch.runtime.trial import Trial
from clutch.runtime.trial_client import TrialClient
from clutch.wire.errors import Unavailable
from clutch.wire.experiment_api import StorageWay


class AwayAtFirst(TrialClient):
    """Nobody answers the first two times."""

    def __init__(self, folder: Path) -> None:
        super().__init__(MasterConnection(("http://127.0.0.1:9",), "token"))
        self.folder = folder
        self.asked = 0

    def storage_way(self) -> StorageWay:
        self.asked += 1
        if self.asked <= 2:
            raise Unavailable("this master does not lead", object="master")
        (self.folder / ".clutch" / "parts").mkdir(parents=True)
        (self.folder / "proof").write_text("here")
        return StorageWay(folder=str(self.folder), proof="proof", content="here")


def test_a_checkpoint_waits_for_the_master_that_says_where_it_goes(tmp_path: Path) -> None:
    client = AwayAtFirst(tmp_path)
    keeper = ClusterKeeper(Info(tmp=str(tmp_path)), Trial(), lambda: client, lambda _: None)
    draft = keeper.draft(1)
    (draft / "weights").write_text("w")
    files = keeper.store(draft, Begun(id="1", place="checkpoints/1", workspace="w"))
    assert (client.asked, [one.path for one in files]) == (3, ["weights"])
    keeper.close()
