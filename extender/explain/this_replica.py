"""Which replica of Stowage answers, and which one keeps the decisions: each keeps only its own."""

from __future__ import annotations

from dataclasses import dataclass

_OWN = "Each replica keeps its own decisions"


@dataclass(frozen=True, slots=True)
class Replica:
    """``name``: of the pod (its host name). ``leads``: whether it is the leader, None without an election.
    ``leader``: the name of the leader, "" where that is not known."""

    name: str
    leads: bool | None = None
    leader: str = ""

    def without_decisions(self) -> str:
        """Where else decisions may be, as a sentence; "" for the leader, which has all since it leads."""
        if self.leads:
            return ""
        if self.leads is None:
            return f"{_OWN}, and this is {self.name}: ask the others, if there are any"
        if not self.leader:
            return f"{_OWN}. This is {self.name}, and there is no leader now"
        return f"{_OWN}. This is {self.name}; kube-scheduler asks the leader, {self.leader}"
