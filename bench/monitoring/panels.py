"""The panels of the dashboard: their titles, descriptions, and queries.

All replicas see the same cluster, so queries about it take the maximum over replicas, and those about
requests take the sum.
"""

from __future__ import annotations

from bench.monitoring.queries import RATE, Panel, Query, by, of_models, quantile, rate

_SERVICE = (
    Panel(
        "Requests by verb",
        "Requests of kube-scheduler.",
        "reqps",
        (Query(rate("verb", "stowage_verb_results_total"), "{{verb}}"),),
        stacked=True,
    ),
    Panel(
        "Results",
        "Results of requests. Failed requests are below.",
        "reqps",
        (Query(rate("verb, result", "stowage_verb_results_total") + " > 0", "{{verb}}: {{result}}"),),
    ),
    Panel(
        "Latency",
        "Median and 99th percentile from the received body to the reply.",
        "s",
        (
            Query(quantile(0.5, "verb", "stowage_verb_seconds"), "{{verb}} p50"),
            Query(quantile(0.99, "verb", "stowage_verb_seconds"), "{{verb}} p99"),
        ),
    ),
    Panel(
        "Failed requests",
        "Requests that failed or that Stowage could not answer. Zero is normal.",
        "reqps",
        (
            Query(
                'sum by (result) (rate(stowage_verb_results_total{result=~"bad_message|internal_error|'
                'not_ready|overloaded|too_large|too_slow"}' + RATE + "))",
                "{{result}}",
            ),
        ),
        stacked=True,
    ),
    Panel(
        "Reevaluated refusals",
        "No node fit, so Stowage waited up to 30 ms for changes. Shows how often that helped.",
        "reqps",
        (Query(rate("result", "stowage_refusal_rechecks_total"), "{{result}}"),),
        stacked=True,
    ),
    Panel(
        "State age and assumed pods",
        "Seconds since the last data of each watch (up to 290 in a quiet cluster), and the age of the "
        "oldest bound pod that the watch has not confirmed.",
        "s",
        (
            Query(by("resource", "stowage_state_age_seconds"), "{{resource}}"),
            Query("max(stowage_assumed_pod_age_seconds)", "oldest assumed pod"),
        ),
    ),
    Panel(
        "Closed watches",
        "`in_time` is normal, once in five minutes per resource.",
        "short",
        (
            Query(
                f"sum by (resource, reason) (increase(stowage_watch_restarts_total{RATE}))",
                "{{resource}}: {{reason}}",
            ),
        ),
        stacked=True,
    ),
    Panel(
        "Problems",
        "Unreadable objects, over-committed nodes, and caught errors. Zero is normal.",
        "short",
        (
            Query("max(stowage_problems)", "problems"),
            Query("max(stowage_overcommitted_nodes)", "over-committed nodes"),
            Query(f"sum(increase(stowage_policy_failures_total{RATE}))", "policy errors"),
        ),
    ),
    Panel(
        "Replicas",
        "Running replicas by version, and leaders.",
        "short",
        (
            Query("count by (version) (stowage_build_info)", "version {{version}}"),
            Query("sum(stowage_leader)", "leaders"),
        ),
    ),
)

_FLEET = (
    Panel(
        "GPUs",
        "All GPUs: in use, free and whole, free as fractions, and free on nodes that accept no pods.",
        "short",
        (
            Query(of_models("stowage_gpus_used"), "in use"),
            Query(of_models("stowage_gpus_whole"), "free, whole"),
            Query(f"{of_models('stowage_gpus_free')} - {of_models('stowage_gpus_whole')}", "free, fractions"),
            Query(
                f"clamp_min({of_models('stowage_gpus_installed')} - {of_models('stowage_gpus_used')} - "
                f"{of_models('stowage_gpus_free')}, 0)",
                "not on offer",
            ),
        ),
        stacked=True,
    ),
    Panel(
        "Compute in use by model",
        "Fraction of the installed GPUs.",
        "percentunit",
        (Query("max by (model) (stowage_gpus_used) / max by (model) (stowage_gpus_installed)", "{{model}}"),),
    ),
    Panel(
        "Free whole GPUs by model",
        "Unused GPUs on nodes that accept pods.",
        "short",
        (Query(by("model", "stowage_gpus_whole"), "{{model}}"),),
        stacked=True,
    ),
    Panel(
        "Free whole nodes by model",
        "Nodes that accept pods and whose GPUs are all free.",
        "short",
        (Query(by("model", "stowage_nodes_whole"), "{{model}}"),),
        stacked=True,
    ),
    Panel(
        "Largest request that fits",
        "Whole GPUs that can be allocated to one pod now, in total and as NVLink peers.",
        "short",
        (
            Query(by("model", "stowage_largest_request_gpus"), "{{model}}"),
            Query(by("model", "stowage_largest_island_gpus"), "{{model}}, island"),
        ),
    ),
    Panel(
        "Stranded GPUs",
        "Free GPUs without sufficient CPU or host memory on the node, or without GPU memory left.",
        "short",
        (Query("sum by (lack) (max by (model, lack) (stowage_stranded_gpus))", "lack of {{lack}}"),),
    ),
    Panel(
        "Stranded MIG slices",
        "Free memory slices that cannot be part of an instance of the profile, but could on an empty GPU.",
        "short",
        (Query(by("model, profile", "stowage_mig_stranded_slices"), "{{profile}} ({{model}})"),),
        may_be_empty="no node has MIG instances",
    ),
    Panel(
        "Free MIG instances",
        "Instances that can be allocated now.",
        "short",
        (Query(by("model, profile", "stowage_mig_free_instances"), "{{profile}} ({{model}})"),),
        may_be_empty="no node has MIG instances",
    ),
    Panel(
        "Nodes that accept no pods",
        "Nodes with GPUs, by reason.",
        "short",
        (Query(by("reason", "stowage_closed_nodes"), "{{reason}}"),),
        stacked=True,
        may_be_empty="all nodes accept pods",
    ),
    Panel(
        "Spot",
        "Fraction of all GPUs, in use and installed, on spot nodes.",
        "percentunit",
        (
            Query(
                f'max(stowage_spot_gpus{{state="used"}}) / clamp_min({of_models("stowage_gpus_used")}, 1)',
                "in use on spot",
            ),
            Query(
                f'max(stowage_spot_gpus{{state="installed"}}) / {of_models("stowage_gpus_installed")}',
                "installed on spot",
            ),
        ),
    ),
)

_PODS = (
    Panel(
        "Pending pods by queue",
        "GPU pods without a node.",
        "short",
        (Query(by("queue", "stowage_waiting_pods"), "{{queue}}"),),
        stacked=True,
    ),
    Panel(
        "Pending GPUs by queue",
        "GPUs that pending pods request.",
        "short",
        (Query(by("queue", "stowage_waiting_gpus"), "{{queue}}"),),
        stacked=True,
    ),
    Panel(
        "GPUs by queue",
        "GPUs allocated to pods with a node.",
        "short",
        (Query(by("queue", "stowage_queue_gpus"), "{{queue}}"),),
        stacked=True,
    ),
    Panel(
        "Oldest pending pod",
        "Seconds since its creation.",
        "s",
        (Query(by("queue", "stowage_waiting_oldest_seconds"), "{{queue}}"),),
    ),
    Panel(
        "Waiting time",
        "Median and 95th percentile over the scheduled pods.",
        "s",
        (
            Query(
                f"histogram_quantile(0.5, max by (le, queue) (rate(stowage_pod_wait_seconds_bucket{RATE})))",
                "{{queue}} p50",
            ),
            Query(
                f"histogram_quantile(0.95, max by (le, queue) (rate(stowage_pod_wait_seconds_bucket{RATE})))",
                "{{queue}} p95",
            ),
        ),
    ),
    Panel(
        "Nodes evaluated, by reason",
        "Fraction of all nodes that filter evaluated.",
        "percentunit",
        (
            Query(
                f"{rate('reason', 'stowage_filtered_nodes_total')} / ignoring(reason) group_left "
                f"sum(rate(stowage_filtered_nodes_total{RATE}))",
                "{{reason}}",
            ),
        ),
        stacked=True,
    ),
    Panel(
        "Pods that fit nowhere",
        "Filter requests without a fitting node; each reason counts once.",
        "reqps",
        (Query(rate("reason", "stowage_unschedulable_total"), "{{reason}}"),),
        may_be_empty="every pod fit",
    ),
    Panel(
        "Preempted and interrupted pods",
        "By queue and reason.",
        "short",
        (
            Query(
                "max by (queue, reason) (sum by (instance, queue, reason) "
                f"(increase(stowage_preempted_pods_total{RATE})))",
                "{{queue}}: {{reason}}",
            ),
        ),
        may_be_empty="no pod was preempted",
    ),
    Panel(
        "Work lost by preemption",
        "Estimated GPU-hours since the start or the last checkpoint, as a rate per hour.",
        "short",
        (
            Query(
                "max by (queue) (sum by (instance, queue) "
                f"(rate(stowage_preempted_gpu_hours_lost_total{RATE}))) * 3600",
                "{{queue}}",
            ),
        ),
    ),
    Panel(
        "Demand mix",
        "Fraction of the pods by number of requested GPUs.",
        "percentunit",
        (Query(by("gpus", "stowage_demand_ratio"), "{{gpus}}"),),
        stacked=True,
    ),
    Panel(
        "Demand drift",
        "Change of the mix since the last plan, and relative to the settings: 0 to 1.",
        "percentunit",
        (Query(by("since", "stowage_demand_drift_ratio"), "since the {{since}}"),),
    ),
)

_HAD = f"max by (workload_namespace, queue, model) (rate(stowage_namespace_gpu_seconds_total{RATE}))"
_WORTH = f"{_HAD} * on (model) group_left max by (model) (stowage_gpu_value)"
_USED = (
    'label_replace(label_replace(DCGM_FI_DEV_GPU_UTIL, "workload_namespace", "$1", "namespace", "(.+)"), '
    '"workload_namespace", "$1", "exported_namespace", "(.+)")'
)
"""By the namespace of the pod, under whichever label Prometheus was configured to keep it."""


def _of_teams(expr: str) -> str:
    return by("workload_namespace", expr, function="sum")


_TEAMS = (
    Panel(
        "GPUs by namespace",
        "GPUs allocated to pods with a node.",
        "short",
        (Query(_of_teams(_HAD), "{{workload_namespace}}"),),
        stacked=True,
    ),
    Panel(
        "Cost per hour",
        "GPUs, weighted by their value relative to an A100 with 80 GB, times its price per hour.",
        "short",
        (Query(f"{_of_teams(_WORTH)} * $price", "{{workload_namespace}}"),),
        stacked=True,
    ),
    Panel(
        "Utilization of these GPUs",
        "Utilization of the namespace's GPUs as reported by the DCGM exporter. Decisions do not use it.",
        "percentunit",
        (
            Query(
                f"{_of_teams(_USED)} / 100 / on (workload_namespace) ({_of_teams(_HAD)} > 0)",
                "{{workload_namespace}}",
            ),
        ),
        may_be_empty="no DCGM exporter",
    ),
)

ROWS: dict[str, tuple[Panel, ...]] = {
    "Fleet": _FLEET, "Pods and queues": _PODS, "Teams": _TEAMS, "Service": _SERVICE
}  # fmt: skip
