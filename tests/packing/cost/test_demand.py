"""The demand keeps the most frequent requests."""

from packing.cost.demand import MOST_TYPES, Demand
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
