"""How to cut a number of units over nodes of different sizes. Arithmetic only: it knows sizes and names."""

from __future__ import annotations

from clutch.wire.ids import NodeId

Size = tuple[int, int, NodeId]
"""How many units fit, how many slots are free, and which node."""
Share = tuple[NodeId, int]


def choose_nodes(sizes: list[Size], count: int, max_nodes: int, *, even: bool, best: bool) -> list[Share] | None:
    """The fewest nodes that hold ``count`` units, and among those the choice that leaves least over.

    ``best`` prefers the smallest node that still fits; otherwise the emptiest nodes are taken. Largest share first.
    """
    if even:
        return _choose_even(sizes, count, max_nodes, best)
    by_size = sorted(sizes, key=_largest_first)
    total = nodes = 0
    for size, _, _ in by_size:
        total += size
        nodes += 1
        if total >= count:
            break
    if total < count or (max_nodes and nodes > max_nodes):
        return None
    if nodes == 1 or not best:
        chosen = [min((s for s in sizes if s[0] >= count), key=_smallest_first)] if best else by_size[:nodes]
    else:
        chosen = _least_over(by_size, nodes, count)
    shares: list[Share] = []
    for size, _, node in chosen:
        share = min(size, count)
        count -= share
        shares.append((node, share))
    return shares


def _largest_first(size: Size) -> tuple[int, int, NodeId]:
    return (-size[0], -size[1], size[2])


def _smallest_first(size: Size) -> Size:
    return size


def _choose_even(sizes: list[Size], count: int, max_nodes: int, best: bool) -> list[Share] | None:
    most = min(count, len(sizes), max_nodes or count)
    for nodes in range(1, most + 1):
        if count % nodes:
            continue
        share = count // nodes
        fitting = [size for size in sizes if size[0] >= share]
        if len(fitting) >= nodes:
            fitting.sort(key=_smallest_first if best else _largest_first)
            return [(node, share) for _, _, node in fitting[:nodes]]
    return None


def _least_over(by_size: list[Size], nodes: int, count: int) -> list[Size]:
    """Exactly ``nodes`` of them with the smallest sum that reaches ``count``; one exists, since the largest do."""
    groups: dict[int, list[Size]] = {}
    for size in by_size:
        groups.setdefault(size[0], []).append(size)
    values = list(groups)  # descending, as by_size is
    largest = by_size[:nodes]
    if sum(size[0] for size in largest) == count:
        picks = [sum(1 for size in largest if size[0] == value) for value in values]
    else:
        picks = _smallest_sum(values, [len(groups[value]) for value in values], nodes, count)
    chosen: list[Size] = []
    for value, taken in zip(values, picks, strict=True):
        # Within one size the fuller node first, so emptier ones stay whole.
        chosen.extend(sorted(groups[value], key=lambda size: (size[1], size[2]))[:taken])
    return chosen


def _smallest_sum(values: list[int], counts: list[int], nodes: int, count: int) -> list[int]:
    """How many of each value, ``nodes`` in all, so that the sum is smallest but at least ``count``.

    Values descend. Worked from the smallest value up: ``reach[n][s]`` remembers how a sum was made with n nodes.
    """
    ceiling = count + values[0]
    reach: list[dict[int, tuple[int, ...]]] = [{} for _ in range(nodes + 1)]
    reach[0][0] = ()
    for value, available in zip(values, counts, strict=True):
        after: list[dict[int, tuple[int, ...]]] = [{} for _ in range(nodes + 1)]
        for used, sums in enumerate(reach):
            for total, picks in sums.items():
                for taken in range(min(available, nodes - used) + 1):
                    new_total = total + taken * value
                    if new_total >= ceiling:
                        break
                    after[used + taken].setdefault(new_total, (*picks, taken))
        reach = after
    best = min(total for total in reach[nodes] if total >= count)
    return list(reach[nodes][best])


def deal_out(fresh: list[Share], used: list[Share], count: int) -> list[Share] | None:
    """Members dealt one by one over nodes, those without such a member first, as evenly as their sizes allow."""
    sizes = fresh + used
    if sum(size for _, size in sizes) < count:
        return None
    dealt = [0] * len(sizes)
    start = [0] * len(fresh) + [1] * len(used)
    for _ in range(count):
        place = min(
            (i for i in range(len(sizes)) if dealt[i] < sizes[i][1]),
            key=lambda i: (dealt[i] + start[i], i),
        )
        dealt[place] += 1
    shares = [(node, taken) for (node, _), taken in zip(sizes, dealt, strict=True) if taken]
    return sorted(shares, key=lambda share: -share[1])
