"""NVLink islands in the cost of a placement: its GPUs, whether they are peers, and the islands that it
splits.

Slots count any k GPUs of a node. On a node with islands, requests for k GPUs lose only the slots that the
islands can no longer hold: ``_correction`` replaces the first count with the second. These functions are
compiled into the kernel of ``inventory_kernels``; after an edit here, clear its cache.
"""

import numpy as np

from packing.cost.kernel_args import APART, PEER_SLOTS, PEERS
from packing.cost.node_kernels import ELIGIBLE, FREE, GROUP, TAKES, UNTOUCHED, tightest_gpus
from packing.fleet.arrays import MIXED_GROUPS, NVLINK_UNKNOWN, ONE_ISLAND, SEVERAL_GROUPS
from packing.jit import inlined

_WHOLE = np.float32(0.999)


@inlined
def has_islands(n, nodes):
    """Whether node ``n`` has several NVLink islands."""
    return nodes.nvlink[n] >= SEVERAL_GROUPS and nodes.max_island[n] > 1


@inlined
def load_islands(n, nodes, gpu):
    """Fill the rows GROUP, UNTOUCHED and ELIGIBLE of ``gpu``; GROUP and UNTOUCHED are zero on a node without
    several islands."""
    several = has_islands(n, nodes)
    for g in range(gpu.shape[1]):
        gpu[GROUP, g] = nodes.island[g, n] if several else 0
        gpu[UNTOUCHED, g] = np.float32(0)
        gpu[ELIGIBLE, g] = gpu[TAKES, g] >= 0
    if not several:
        return
    for g in range(gpu.shape[1]):
        if gpu[FREE, g] > _WHOLE:
            for h in range(gpu.shape[1]):
                gpu[UNTOUCHED, h] += gpu[GROUP, h] == gpu[GROUP, g]


@inlined
def _group_to_take(gpu, count):
    """The smallest group with at least ``count`` eligible GPUs; if there is none, the largest group."""
    chosen, size = -1, 0
    for first in range(gpu.shape[1]):
        eligible = 0
        for g in range(first, gpu.shape[1]):
            eligible += gpu[GROUP, g] == first and gpu[ELIGIBLE, g] > 0
        if eligible > 0 and (
            (eligible >= count and (size < count or eligible < size)) or size < eligible <= count
        ):
            chosen, size = first, eligible
    return chosen


@inlined
def gpus_of_few_islands(gpu, count):
    """``count`` eligible GPUs of as few islands as possible, as a bit mask: of the smallest island that holds
    them all, and the fullest GPUs within it. Clears ELIGIBLE of the GPUs it takes."""
    taken = np.int64(0)
    left = count
    for _ in range(gpu.shape[1]):
        group = _group_to_take(gpu, left)
        if group < 0 or left == 0:
            break
        while left > 0:
            best, least = -1, np.float32(2)
            for g in range(gpu.shape[1]):
                if gpu[GROUP, g] == group and gpu[ELIGIBLE, g] > 0 and gpu[FREE, g] < least:
                    best, least = g, gpu[FREE, g]
            if best < 0:
                break
            gpu[ELIGIBLE, best] = np.float32(0)
            taken |= np.int64(1) << best
            left -= 1
    return taken


@inlined
def choose_gpus(n, nodes, count, peers, gpu):
    """The GPUs for ``count`` shares as a bit mask: peers where possible if ``peers`` is above 1."""
    if peers > 1 and has_islands(n, nodes):
        return gpus_of_few_islands(gpu, count)
    return tightest_gpus(gpu, count)


@inlined
def next_gpus(gpu, count):
    """The GPUs to which the fleet will attribute the next ``count`` devices of a device plugin, as a bit
    mask."""
    taken = np.int64(0)
    for g in range(gpu.shape[1]):
        if count > 0 and gpu[FREE, g] > _WHOLE:
            taken |= np.int64(1) << g
            count -= 1
    return taken


@inlined
def _whole_devices(n, nodes, request):
    """The number of whole GPUs that the device plugin of node ``n`` would allocate to the request."""
    count = 0
    for r in range(request.devices.size):
        if nodes.divisible_pool[r, n] == 0 and nodes.device_gpu[r, n] > _WHOLE:
            count += request.devices[r]
    return count


@inlined
def _apart(n, nodes, chosen, whole, request, gpu):
    """-1 if the request's GPUs are peers: those ``chosen``, or ``whole`` ones of a device plugin; 1 if they
    are not; -0.5 if the plugin will probably allocate peers. ``free_peers``: devices of a resource on a node
    that are peers whichever of them the plugin allocates; ``UNTOUCHED``: unused GPUs in the island of a
    GPU."""
    if nodes.nvlink[n] == ONE_ISLAND:
        return -1.0
    if chosen == 0:
        sure, most = True, np.float32(0)
        for g in range(gpu.shape[1]):
            most = max(most, gpu[UNTOUCHED, g])
        for r in range(request.devices.size):
            sure = sure and request.devices[r] <= nodes.free_peers[r, n]
        if whole == 0 or nodes.max_island[n] < 2 or nodes.nvlink[n] == MIXED_GROUPS:
            return 1.0
        return -1.0 if sure else -0.5 if whole <= most else 1.0
    group = np.float32(-1)
    for g in range(gpu.shape[1]):
        if (chosen >> g) & 1:
            if group >= 0 and gpu[GROUP, g] != group:
                return 1.0
            group = gpu[GROUP, g]
    return -1.0 if nodes.max_island[n] > 1 else 1.0


@inlined
def _held(gpu, taken, size):
    """How many sets of ``size`` unused GPUs the islands hold without those ``taken``, and how many the node
    holds."""
    islands, in_all = 0, 0
    for first in range(gpu.shape[1]):
        untouched = 0
        for g in range(first, gpu.shape[1]):
            untouched += gpu[GROUP, g] == first and gpu[FREE, g] > _WHOLE and (taken >> g) & 1 == 0
        islands += untouched // size
        in_all += untouched
    return islands, in_all // size


@inlined
def _correction(n, taken, types, counts, prices, limits, gpu):
    """The slots for several GPUs that the islands of node ``n`` lose, minus the loss that the slots already
    count."""
    lost, last, b, a, after = 0.0, 0, 0, 0, 0
    for t in range(limits.size):
        size = int(types.amounts[PEERS, t])
        before = counts.slots[n, t]
        if size < 2 or prices[t] == 0 or before == 0:
            continue
        if size != last:
            b, _ = _held(gpu, np.int64(0), size)
            a, after = _held(gpu, taken, size)
            last = size
        islands = min(np.float32(b), before) - min(np.float32(a), min(limits[t], before))
        lost += prices[t] * (islands - (before - min(np.float32(after), min(limits[t], before))))
    return lost


@inlined
def _split(n, nodes, chosen, request, gpu):
    """The number of unused GPUs in the largest island from which the request takes one; 0 if there is
    none."""
    if nodes.max_island[n] < 2:
        return np.float32(0)
    taken = chosen if chosen != 0 else next_gpus(gpu, _whole_devices(n, nodes, request))
    several, untouched, most = has_islands(n, nodes), 0, np.float32(0)
    for g in range(gpu.shape[1]):
        if gpu[FREE, g] > _WHOLE:
            untouched += 1
            if (taken >> g) & 1:
                most = max(most, max(gpu[UNTOUCHED, g], np.float32(1)))
    if most > 0 and not several and nodes.nvlink[n] == ONE_ISLAND:
        most = np.float32(untouched)
    return most


@inlined
def tie_break(n, nodes, chosen, rest, request, gpu):
    """0 to 1: among nodes of equal cost, those with the least ``rest`` free are preferred; where islands are
    known, the size of the unused part of the island that the request splits counts equally."""
    tie = rest / (1 + rest)
    if nodes.nvlink[n] == NVLINK_UNKNOWN:
        return tie
    return (tie + _split(n, nodes, chosen, request, gpu) / 64) / 2


@inlined
def islands_cost(n, nodes, chosen, request, types, counts, prices, limits, gpu):
    """Additional cost of the placement due to islands, in GPUs, possibly negative. 0 where islands are
    unknown."""
    if nodes.nvlink[n] == NVLINK_UNKNOWN:
        return 0.0
    peers, cost = request.amounts[PEERS], 0.0
    whole = _whole_devices(n, nodes, request) if chosen == 0 else 0
    if peers > 1:
        cost += APART * peers * _apart(n, nodes, chosen, whole, request, gpu)
    if has_islands(n, nodes):
        taken = chosen if chosen != 0 else next_gpus(gpu, whole)
        cost += PEER_SLOTS * _correction(n, taken, types, counts, prices, limits, gpu)
    return cost
