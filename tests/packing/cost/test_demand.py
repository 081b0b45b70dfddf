"""The demand keeps the most frequent requests."""

from packing.cost.demand import MOST_TYPES, Demand, Mix
from packing.model.request import Request

GPU = "nvidia.com/gpu"


def test_demand_remembers_the_requests_that_come_most():
    demand = Demand()
    for _ in range(5):
        demand.observe(Request(devices=((GPU, 1),)))
    for i in range(5 * MOST_TYPES):
        demand.observe(Request(i, devices=((GPU, 2),)))
    assert len(demand._counts) <= 2 * MOST_TYPES
    assert Request(devices=((GPU, 1),)) in demand._counts


def test_each_set_of_nodes_is_covered():
    """However few insist on a set: nobody else keeps its nodes free for them."""
    anywhere = {Request(1000, devices=((GPU, 1),)): 900, Request(2000, devices=((GPU, 1),)): 100}
    zone = {Request(cpu, devices=((GPU, 1),), node_set="a"): n for cpu, n in ((1000, 20), (2000, 1))}
    assert set(Mix.of(anywhere | zone).requests) == {*anywhere, next(iter(zone))}
