"""Who gets which room: a ledger of who holds what, policies that read it, plans that say what should happen.

- ``ledger``, ``room_index``, ``waiting_line``, ``evictable``, ``quota``: the books of a pool, kept in step by the fold
- ``demand``, ``fitting``, ``packing``: what a request needs and where it fits
- ``priority``, ``fair_share``, ``shares``: the policies; ``workbench``, ``victims``, ``reservation``, ``limits`` and
  ``headroom`` are what they think with
- ``plan``, ``outcome``, ``snapshot``, ``reasons``: what they answer, and why somebody waits

A policy never changes the books. Its plan becomes facts in ``core.decisions.scheduling``, after a second look.
"""
