"""Which function makes which fault of the plan."""

from collections.abc import Callable

from . import cluster_faults as cluster
from . import process_faults as process
from .plan import Planned
from .proxy import Proxy
from .stack import Stack
from .watch import Watch

Fault = Callable[[Stack, Planned], None]


def faults(watch: Watch) -> dict[str, Fault]:
    """By the names of ``plan.KINDS``. A fault returns when it is over."""
    nodes = cluster.NodeFaults(watch)
    return {
        "kill": process.kill,
        "stop": process.stop,
        "slow": process.slow,
        "memory limit": process.limit_memory,
        "disk full": process.fill_disk,
        "start on a full disk": process.start_on_a_full_disk,
        "clock jump": process.jump_clock,
        "api server killed": process.kill_api_server,
        "api server stopped": process.stop_api_server,
        "etcd restarted": process.restart_etcd,
        "scheduler killed": process.kill_scheduler,
        "watch cut": cluster.cut_watches,
        "watch gone (410)": cluster.expire_watches,
        "watch late": cluster.network_fault(Proxy.late),
        "half-open connections": cluster.network_fault(Proxy.half_open),
        "watch without a head": cluster.network_fault(Proxy.headless),
        "watch trickles": cluster.network_fault(Proxy.trickling),
        "cut off": cluster.network_fault(Proxy.cut_off),
        "bindings fail": cluster.fail_bindings,
        "node cordoned": nodes.cordon,
        "node not ready": nodes.taint,
        "node deleted": nodes.delete,
        "node re-partitioned": nodes.repartition,
        "node shrinks": nodes.shrink,
        "certificates rotated": cluster.rotate_certificates,
        "hostile pods": cluster.send_hostile_pods,
        "hostile requests": cluster.send_hostile_requests,
    }
