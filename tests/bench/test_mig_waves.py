"""MIG layouts that change by the rule, in small worlds."""

from bench.packing.mig_waves import ByRule, fixed, jobs_of, simulate, split
from packing.plan.mig_layouts import ChangeRule

RULE = ChangeRule(seconds=120)


def test_layouts_that_serve_their_demand_stay():
    result = simulate(jobs_of("steady", 8, 2, 0.3, 1), 4, 8, 2, ByRule(RULE))
    assert result.changes == 0


def test_waves_are_served_nearly_as_by_the_best_split():
    jobs = jobs_of("waves", 8, 2, 0.75, 1)
    by_rule = simulate(jobs, 4, 8, 2, ByRule(RULE))
    assert by_rule.gpu_hours > 0.9 * simulate(jobs, 4, 8, 2, split((2, 6))).gpu_hours
    assert by_rule.gpu_hours >= 0.99 * max(simulate(jobs, n, 8, 2, fixed).gpu_hours for n in range(9))
    assert by_rule.changes > 2
