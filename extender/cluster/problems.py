"""Problems with objects of the cluster: what cannot be read, or contradicts something else."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class Problems(dict[str, str]):
    """The present problem of each object, by the name of a node, the key of a pod or another subject."""

    def report(self, subject: str, problem: str) -> None:
        """Keep a problem, "" for none any more. A new one is logged once."""
        if not problem:
            self.pop(subject, None)
        elif self.get(subject) != problem:
            log.warning("%s: %s", subject, problem)
            self[subject] = problem
