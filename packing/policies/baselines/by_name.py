"""All baselines by the name that ``packing.policies.registry`` gives them."""

from __future__ import annotations

from packing.policies.baselines.base import Baseline
from packing.policies.baselines.best_fit import BestFit
from packing.policies.baselines.dot_product import DotProduct
from packing.policies.baselines.gpu_clustering import GpuClustering
from packing.policies.baselines.gpu_packing import GpuPacking
from packing.policies.baselines.least_squares import LeastSquares
from packing.policies.baselines.simple import FirstFit, LeastAllocated, MostAllocated

_ALL = BestFit, DotProduct, GpuClustering, GpuPacking, LeastSquares, FirstFit, LeastAllocated, MostAllocated
BASELINES: dict[str, type[Baseline]] = {policy.name: policy for policy in _ALL}
