"""What happens in the tests to each command of the pages. A command that is nowhere here fails a test.

Every command is also checked for syntax (syntax.py), whatever is said here.
"""

from __future__ import annotations

# ruff: noqa: E501 (a command is one line, as on its page)

HERE = (
    'python3 train.py --steps 50000000 & sleep 2; kill $!; wait $!; echo "ended with $?"',
    "stowage explain -f job.yaml --snapshot cluster.json",
    "stowage explain deploy/examples/first-pod.yaml --example",
    "stowage explain pod.yaml --example",
    "stowage explain pod.yaml --example --node h100-04 --node a100-02",
    "stowage explain pod.yaml --snapshot cluster.json",
    "stowage plan mig --snapshot cluster.json",
    "stowage replay --snapshot cluster.json --policy inventory,best-fit,most-allocated",
    "stowage replay --snapshot cluster.json --policy inventory,least-allocated",
    "stowage top --snapshot cluster.json",
    "stowage version",
)
"""Run to the end by test_commands.py, in a directory with the files that they name."""

UNTIL = {
    "python3 train.py --steps 50000000": "resumed from step",
    "stowage serve --snapshot cluster.json": "ready: ",
    "stowage serve --tls-cert tls.crt --tls-key tls.key --client-ca ca.crt --debug-port 8081": "ready: ",
}
"""Run by test_commands.py until they print this, and then told to stop. They listen on any free port."""

BY_TEST = {
    "tests/docs/test_samples.py::test_a_sample_is_what_the_command_prints": (
        "stowage explain docs/examples/gang.yaml --snapshot docs/examples/cluster.json",
        "stowage explain notebooks/carl --snapshot docs/examples/full.json",
        "stowage explain training/train-16g-p5 --example",
        "stowage explain -n training --example",
        "stowage audit --example",
        "stowage settings",
        "stowage top --example",
        "stowage top pods --node h100-03 --example",
    ),
    "tests/extender/cli/test_plan.py::test_the_samples_of_the_page_are_what_it_prints": (
        "stowage plan --example --prices prices.yaml",
        "stowage plan change --example --add 1xH100 --remove t4-03",
        "stowage plan drain --example -o csv",
        "stowage plan mig --snapshot bad-layout.json",
        "stowage plan moves --example --free nodes --moves 2 -o csv",
    ),
    "tests/extender/cli/test_replay_docs.py::test_samples_are_what_the_command_prints": (
        "stowage replay --snapshot docs/examples/cluster.json --policy inventory,best-fit",
    ),
    "tests/extender/demo/test_demo.py::test_it_keeps_serving_at_a_free_port_until_ctrl_c": ("make demo",),
    "tests/extender/server/test_run.py::test_decisions_and_the_past_outlive_a_kill": (
        "stowage explain team-a/train-0 --before 2026-11-27T03:10",
        "stowage explain team-a/train-0 --before 26h",
    ),
    "tests/e2e/test_kubectl.py::test_the_recipe_of_the_page": (
        "kubectl create rolebinding stowage-viewers -n stowage-system --role stowage-kubectl --group my-team",
        "kubectl create token stowage-viewer --namespace stowage-system --audience stowage",
        "kubectl proxy",
        "kubectl stowage explain default/first",
        "kubectl stowage top -n my-namespace",
    ),
    "tests/e2e/test_program.py::test_it_is_installed_from_the_clone": ("uv tool install .",),
    "tests/e2e/test_install.py::test_the_commands_of_the_page_place_a_first_pod": (
        "tar xf kube_stowage-0.1.0.tar.gz",
        "helm install stowage stowage-0.1.0.tgz --namespace stowage-system --create-namespace "
        "--set image.repository=registry.example.com/stowage",
        "kubectl label namespace stowage-system pod-security.kubernetes.io/enforce=restricted",
        "kubectl --namespace stowage-system rollout status deployment/stowage-scheduler --timeout=5m",
        "kubectl apply --filename kube_stowage-0.1.0/deploy/examples/first-pod.yaml",
        "kubectl wait pod/first --for=condition=PodScheduled --timeout=60s",
        "kubectl get pod first --output wide",
    ),
    "tests/e2e/test_install_tls.py::test_the_commands_with_tls_place_a_first_pod": (
        "kubectl create namespace stowage-system",
        "kubectl create secret generic stowage-scheduler-tls -n stowage-system --from-file=tls.crt=stowage-scheduler.crt "
        "--from-file=tls.key=stowage-scheduler.key --from-file=ca.crt",
        "kubectl create secret generic stowage-tls -n stowage-system --from-file=tls.crt=stowage.crt "
        "--from-file=tls.key=stowage.key --from-file=ca.crt",
        "sed -e 's,urlPrefix: http:,urlPrefix: https:,' -e '/# enableHTTPS/,/# *keyFile/s/# //' "
        "scheduler-config/second-scheduler.yaml > config.yaml",
        "helm install stowage deploy/chart --namespace stowage-system --set shape=separate "
        "--set image.repository=registry.example.com/stowage",
        "kubectl apply --filename deploy/examples/first-pod.yaml",
    ),
    "tests/e2e/test_install.py::test_the_plain_manifests_of_the_page_place_a_pod": (
        "kubectl apply --filename deploy/rbac.yaml",
        "sed 's,http://[^ ]*/scheduler,http://127.0.0.1:8080/scheduler,' "
        "scheduler-config/second-scheduler.yaml > config.yaml",
        "kubectl create configmap stowage-scheduler --namespace stowage-system --from-file=config.yaml",
        "kubectl apply --filename deploy/beside-kube-scheduler.yaml",
    ),
    "tests/e2e/test_volcano_install.py::test_the_commands_of_the_page": (
        "kubectl apply -f deploy/rbac.yaml -f deploy/volcano/stowage.yaml",
        "kubectl -n volcano-system patch deployment volcano-scheduler --patch-file deploy/volcano/sidecar.yaml",
        "kubectl apply -f deploy/volcano/scheduler.yaml",
    ),
    "tests/e2e/test_workloads.py::test_the_commands_of_the_page": (
        "kubectl apply --filename deploy/workloads/scheduler-name.yaml",
        "kubectl create namespace research",
        "kubectl label namespace research stowage.dev/scheduler=stowage",
        "kubectl apply --filename deploy/workloads/only-stowage.yaml",
        "kubectl taint nodes --selector nvidia.com/gpu.present=true nvidia.com/gpu=present:NoSchedule",
    ),
}
"""Run, and compared with the page where it shows an output, by a test that is there for it."""

IN_E2E = (
    "helm install stowage deploy/chart --namespace stowage-system --create-namespace "
    "--set image.repository=registry.example.com/stowage --set settings.bind=true",
    "helm install stowage-a deploy/chart --namespace stowage-a --create-namespace --values deploy/examples/shards/a.yaml --set image.repository=registry.example.com/stowage",
    "helm install stowage-b deploy/chart --namespace stowage-b --create-namespace --values deploy/examples/shards/b.yaml --set image.repository=registry.example.com/stowage",
    "helm history stowage --namespace stowage-system",
    "helm rollback stowage 1 --namespace stowage-system",
    "helm uninstall stowage --namespace stowage-system",
    "helm upgrade stowage deploy/chart --namespace stowage-system --reset-then-reuse-values --set image.tag=0.2.0",
    "kubectl apply -f deploy/examples/queue-batch.yaml",
    "kubectl apply -f deploy/priority-classes.yaml",
    "kubectl apply -f job.yaml",
    "kubectl apply -k deploy/nvlink-labeller",
    "kubectl cordon gpu-1",
    "kubectl create configmap train-code --from-file=train.py",
    "kubectl delete pod -l job-name=train --wait=false",
    "kubectl describe pod backfill-7",
    "kubectl describe pod my-pod",
    "kubectl describe pod notebook-1",
    "kubectl drain gpu-1 --ignore-daemonsets --delete-emptydir-data",
    "kubectl get events --field-selector involvedObject.name=my-pod",
    "kubectl get nodes,pods -A -o json > cluster.json",
    "kubectl get node gpu-1 --label-columns nvidia.com/mig.config.state --watch",
    "kubectl get pods --namespace research --output wide --watch",
    "kubectl label node gpu-1 my.org/scheduler-",
    "kubectl label node gpu-1 my.org/scheduler=stowage",
    "kubectl label node gpu-1 nvidia.com/mig.config=all-3g.40gb --overwrite",
    "kubectl label node gpu-1 stowage.dev/shard=a",
    "kubectl label node gpu-1 stowage.dev/shard=b --overwrite",
    "kubectl scale deployment hami-scheduler --replicas=0 --namespace kube-system",
    "kubectl scale deployment hami-scheduler --replicas=1 --namespace kube-system",
    "kubectl taint node gpu-1 my.org/scheduler=stowage:NoSchedule",
    "kubectl taint node gpu-1 my.org/scheduler=stowage:NoSchedule-",
    "kubectl uncordon gpu-1",
    "kubectl label node gpu-1 stowage.dev/gpu-sharing=true",
    "kubectl annotate node gpu-1 --overwrite stowage.dev/gpu-uuids=GPU-6d0a2a8e-0c1b-4f6e-9d3c-2f1e5a7b9c01,"
    "GPU-0b7f2c44-8a55-4d7e-b1a2-93c6d4e8f702",
    "kubectl stowage explain my-namespace/my-pod",
    "kubectl stowage top",
    "kubectl taint node gpu-1 stowage.dev/gpu-sharing=true:NoSchedule",
    "stowage explain job/train -n my-namespace",
    "stowage explain my-pod -n my-namespace",
    "stowage top",
    "stowage top --local",
    "stowage top -n my-namespace",
    "stowage top pods",
    "stowage explain -A",
    "stowage top -o json",
    "stowage top -o wide",
    "stowage top --by model",
    "stowage top h100-01 h100-02",
    "stowage top --sort free",
    "stowage top --no-headers",
)
"""Run by tests/e2e/test_docs.py against the real API server."""

NOT_RUN = {
    "git clone --depth 1 https://github.com/alibaba/clusterdata": "needs another host",
    "docker buildx build --platform linux/amd64,linux/arm64 -f deploy/image/Containerfile "
    "-t registry.example.com/stowage:0.1.0 --sbom=true --provenance=mode=max --push .": "needs a container engine",
    "curl localhost:8081/debug/problems": "needs the port-forward above; tests/contract/test_debug_docs.py asks it",
    'curl -X PUT -H "Authorization: Bearer $TOKEN" --data 2 http://localhost:8081/debug/flags/v': "needs the "
    "port-forward; tests/extender/server/test_run.py asks it",
    "kubectl --namespace stowage-system port-forward deployment/stowage-scheduler 8081": "needs a kubelet",
    "kubectl -n stowage-system port-forward deployment/stowage-scheduler 8081": "needs a kubelet",
    "kubectl logs -f job/train": "needs a kubelet",
    "kubectl exec -n stowage-system deployment/stowage-scheduler -c stowage -- stowage settings "
    "--config /etc/stowage/settings.yaml": "needs a kubelet",
    "CGO_ENABLED=0 go build -o bin/vc-scheduler ./cmd/scheduler": "needs a clone of Volcano",
    "mkdir bin/crds && cp config/crd/volcano/bases/* bin/crds/": "needs a clone of Volcano",
    "make test": "runs this test",
    "make e2e": "runs all end-to-end tests",
    ".venv/bin/pytest tests/hostile": "its tests run with all others",
    ".venv/bin/pytest tests/e2e -o addopts= -v -k preempt": "its tests run with all others",
    ".venv/bin/python -m tests.e2e.controlplane": "a control plane until Ctrl-C, as in every end-to-end test",
    ".venv/bin/python -m tests.e2e.soak --seed 1 --faults 1000 --pods 100000": "takes an hour; tests/e2e/test_soak.py is "
    "its short form",
    ".venv/bin/python -m tests.e2e.controlplane.build": "takes minutes; `make e2e` runs it first",
    "stowage audit --snapshot cluster.json -o html --prices prices.yaml": "tests/extender/cli/test_audit.py runs it",
    "stowage audit --snapshot cluster.json --before last-week.json --bill": "tests/extender/cli/test_audit.py runs both",
    "uvx --from kube_stowage-0.1.0-py3-none-any.whl stowage audit": "needs uv and a cluster",
    "stowage plan slices --snapshot cluster.json --prometheus http://prometheus:9090": "needs Prometheus",
    "stowage top -w": "the same as without -w, until Ctrl-C",
}
"""Only checked for syntax, and why."""

BENCHMARKS = "python -m bench."
"""Commands that start so take minutes to hours: only their arguments are read, by their own parsers."""

SCRIPTS = {
    "docs/tls.md": "tests/test_tls_page.py::test_the_certificates_made_with_openssl",
    "docs/tutorial.md": "tests/e2e/test_tutorial.py::test_packed_explained_preempted_and_consolidated",
}
"""The ``sh`` blocks of these pages are run by this test."""
