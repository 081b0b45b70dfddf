"""Which ResourceClaims are deallocated when pods leave."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from extender.cluster.state import State
from extender.dra.forecast import AllocationSimulator
from extender.k8s.objects import Pod


class FreedClaims:
    """The allocated claims of one moment, by the pods that use them. A claim is deallocated when its last
    user has left, unless the pod that is to be placed uses it, too."""

    def __init__(self, state: State, pod: Pod) -> None:
        self._state, self._users = state, dict[str, frozenset[str]]()
        self._by_user: defaultdict[str, list[str]] = defaultdict(list)
        generated = dict(pod.claims)
        own = {f"{pod.namespace}/{one.claim or generated.get(one.name, '')}" for one in pod.spec.claims}
        for claim in state.devices.claims.values():
            if not claim.allocation or claim.problem or claim.reserved_for_others or claim.key in own:
                continue
            if claim.reserved_for:
                users = frozenset(f"{claim.namespace}/{user}" for user in claim.reserved_for)
                self._users[claim.key] = users
                for user in users:
                    self._by_user[user].append(claim.key)

    def by(self, pods: Collection[Pod]) -> frozenset[str]:
        """The claims that are deallocated once these pods have left."""
        gone = {pod.key for pod in pods}
        touched = {claim for key in gone for claim in self._by_user.get(key, ())}
        return frozenset(claim for claim in touched if self._users[claim] <= gone)

    def used_by(self, pod: Pod) -> bool:
        """Whether the pod uses a claim that may be deallocated."""
        return pod.key in self._by_user

    def simulator(self, pods: Collection[Pod]) -> AllocationSimulator:
        """Forecasts as if these pods had left."""
        return AllocationSimulator(self._state.devices.without_claims(self.by(pods)))
