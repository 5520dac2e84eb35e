"""A whole cluster in one process, from one seed.

The production core, master loop, journal (in memory) and agent brain run unchanged; user processes, machines and the
network are stand-ins that fail on purpose. ``run.py`` is the door.

- ``plan.py``      what a seed means: the cluster, the work and the faults
- ``cluster.py``   masters, machines and users, wired together by hand
- ``machine.py``   a node: its agent, its processes and its devices
- ``processes.py`` stand-ins for trials, replicas and workers
- ``users.py``     people and notebooks who submit, pause, resize, cancel and run cells
- ``calls.py``     asking a master over a network that loses things, until it answers
- ``truth.py``     what is really so: an independent fold of the journal, and the machines themselves
- ``promises.py``  P1 to P5, checked after every step
- ``sweep.py``     a small controller, so that the contract of workloads is exercised too
"""
