"""`python -m tests.e2e.controlplane [CONFIGURATION]` runs a control plane until Ctrl-C."""

import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import yaml

from .api import Object
from .build import missing
from .cluster import ControlPlane

PLAIN: Object = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": False},
}


def main(arguments: list[str]) -> None:
    if missing():
        sys.exit("not built yet: python -m tests.e2e.controlplane.build")
    configuration = yaml.safe_load(Path(arguments[0]).read_text()) if arguments else PLAIN
    with (
        suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory() as directory,
        ControlPlane(Path(directory)) as plane,
        plane.scheduler(configuration),
    ):
        print(f"export KUBECONFIG={plane.kubeconfig}\nlogs: {plane.logs}\nCtrl-C stops it.", flush=True)
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    main(sys.argv[1:])
