"""From a template to the machines of a pool."""

from __future__ import annotations

from clutch.backends.machines.base import Machines
from clutch.backends.machines.site import Site
from clutch.wire.machines import LocalTemplate, MachineTemplate


def open_machines(template: MachineTemplate, site: Site) -> Machines:
    """Where this pool's machines come from."""
    if isinstance(template, LocalTemplate):
        from clutch.backends.machines.local import LocalMachines

        return LocalMachines(template, site)
    from clutch.backends.machines.ssh import SshMachines

    return SshMachines(template, site)
