"""What nodes have and what pods take of it, counted from API objects without any code of Stowage.

The rules are kube-scheduler's: a pod takes the larger of the sum of its containers and its largest init
container, and gives it back when it ends.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable

from .controlplane.api import Object

BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}
MILLI = {"m": 1, "": 1000} | {unit: 1000 << bits for unit, bits in BINARY.items()}
Amounts = Counter[str]  # in thousandths, by resource


class Books:
    """What pods take, by the node that they are bound to."""

    def __init__(self, nodes: Iterable[Object], pods: Iterable[Object] = ()) -> None:
        self.nodes = {node["metadata"]["name"]: node for node in nodes}
        self._held: defaultdict[str, dict[str, Amounts]] = defaultdict(dict)
        for pod in pods:
            self.put(pod)

    def put(self, pod: Object) -> None:
        """Add or update a pod."""
        node = pod["spec"].get("nodeName")
        if pod["status"]["phase"] in ("Succeeded", "Failed"):
            self.remove(pod)
        elif node:
            self._held[node][pod["metadata"]["uid"]] = needs(pod)

    def remove(self, pod: Object) -> None:
        self._held[pod["spec"].get("nodeName", "")].pop(pod["metadata"]["uid"], None)

    def excess(self, node: str) -> dict[str, str]:
        """By resource, what the pods of a node take beyond its allocatable."""
        has, held = self._has(node), self._sum(node)
        return {name: f"{n / 1000:g} of {has[name] / 1000:g}" for name, n in held.items() if n > has[name]}

    def fitting(self, pod: Object) -> list[str]:
        """The nodes that have room for the pod and match its node selector."""
        return [name for name in self.nodes if self._allows(name, pod) and self._has_room(name, pod)]

    def _allows(self, node: str, pod: Object) -> bool:
        labels = self.nodes[node]["metadata"]["labels"]
        return all(labels.get(key) == value for key, value in pod["spec"].get("nodeSelector", {}).items())

    def _has_room(self, node: str, pod: Object) -> bool:
        has, held = self._has(node), self._sum(node)
        return all(held[name] + n <= has[name] for name, n in needs(pod).items())

    def _has(self, node: str) -> Amounts:
        return amounts(self.nodes[node]["status"]["allocatable"])

    def _sum(self, node: str) -> Amounts:
        return sum(self._held[node].values(), Amounts())


def needs(pod: Object) -> Amounts:
    containers = sum((requests(one) for one in pod["spec"]["containers"]), Amounts())
    for one in pod["spec"].get("initContainers", ()):
        containers |= requests(one)
    return containers + Amounts(pods=1000)


def requests(container: Object) -> Amounts:
    return amounts(container["resources"].get("requests", {}))


def amounts(quantities: dict[str, str]) -> Amounts:
    """Quantities in the form that the API server writes."""
    return Amounts({name: quantity(text) for name, text in quantities.items()})


def quantity(text: str) -> int:
    number = text.rstrip("mKMGTi")
    return int(number) * MILLI[text.removeprefix(number)]
