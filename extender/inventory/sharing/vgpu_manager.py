"""GPUs as vgpu-manager registers them: the node annotation ``nvidia.com/node-device-register``.

Facts (coldzerofear/vgpu-manager at 3d7f66d): a JSON list of id (index), type, uuid, core (per cent), memory
(MiB), number (shares), numa, mig, healthy (``pkg/device/types.go``). ``node-config-info`` has a factor by
which the memory of requests is multiplied. GPUs with ``mig`` belong to NVIDIA's plugin and take no shares.
Its scheduler takes no node without ``node-config-info``, or with a ``deviceSplit`` or a ``memoryFactor`` of
0, and Go reads a missing number as 0. With a ``memoryScaling`` above 1 the memory is virtual, and pods may
ask for one of both kinds (CheckNode, GetMemoryPolicyFunc in ``pkg/scheduler/filter/filter_predicate.go``).

If vgpu-manager no longer advertises devices and NVIDIA's plugin does, vgpu-manager's pods may still hold
parts of the GPUs. So the GPUs stay accounted for, and the node takes no new pods.
"""

from __future__ import annotations

from pydantic_core import from_json

from extender.inventory.shared_gpus import InventoryError, Parser, SharedGpus, advertises_nvidia
from extender.k8s.objects import Node
from extender.k8s.quantity import whole
from extender.untrusted.limits import GPU_MIB
from packing.model.node_spec import Gpu

RESOURCE = "nvidia.com/vgpu-number"
REGISTER, CONFIG = "nvidia.com/node-device-register", "nvidia.com/node-config-info"
VIRTUAL, PHYSICAL = "virtual memory", "physical memory"
_PARSER = Parser(REGISTER)


def shared_gpus(node: Node) -> SharedGpus | None:
    """The node's GPUs if vgpu-manager shares them. Raises InventoryError."""
    text = node.annotations.get(REGISTER)
    leftover = not whole(node.allocatable.get(RESOURCE, "0"))
    if not text or (leftover and not advertises_nvidia(node)):
        return None
    try:
        entries = _PARSER.objects(from_json(text))
        config = from_json(node.annotations.get(CONFIG) or "null")
    except ValueError as error:
        raise InventoryError(f"{REGISTER} or {CONFIG} cannot be read: {error}") from error
    if leftover and all(entry.get("mig") is True for entry in entries):
        return None  # all of them belong to NVIDIA's plugin
    scaling, config_problem = _read_config(config)
    entries.sort(key=lambda entry: _PARSER.number(entry.get("id")))
    gpus = [
        Gpu(
            _PARSER.number(entry.get("memory"), GPU_MIB),
            entry.get("healthy") is True and entry.get("mig") is not True,
            _PARSER.number(entry.get("core")) * 10,
            _PARSER.number(entry.get("number")),
            _PARSER.text(entry.get("uuid", "")),
        )
        for entry in entries
    ]
    return SharedGpus(
        RESOURCE,
        REGISTER,
        _PARSER.with_products(_PARSER.checked(gpus), (entry.get("type", "") for entry in entries)),
        _PARSER.products(entry.get("type", "") for entry in entries),
        mode=VIRTUAL if scaling > 1 else PHYSICAL,
        problem=_PARSER.leftover_problem(RESOURCE) if leftover else config_problem,
        lists_unhealthy_gpus=any(entry.get("healthy") is not True for entry in entries),
    )


def _read_config(config: object) -> tuple[float, str]:
    """The memory scaling, and why vgpu-manager takes no pods. Raises InventoryError."""
    if not isinstance(config, dict):
        return 1, f"{CONFIG} is missing, and vgpu-manager uses no such node"
    names = ("deviceSplit", "memoryFactor", "memoryScaling")
    split, factor, scaling = (config.get(name, 0) for name in names)
    if not all(isinstance(number, int | float) for number in (split, factor, scaling)):
        raise InventoryError(f"{CONFIG} cannot be read")
    if factor not in (0, 1):
        raise InventoryError(f"{CONFIG}: a memory factor other than 1 is not supported")
    zero = "memoryFactor" if not factor else "deviceSplit" if split <= 0 else ""
    return scaling, f"{CONFIG}: {zero} is 0, and vgpu-manager uses no such node" if zero else ""
