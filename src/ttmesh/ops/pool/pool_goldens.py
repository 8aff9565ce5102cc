"""The goldens of ttnn.operations.pool by their own names, as test suites import them."""

from __future__ import annotations

from ttmesh.ops.catalogue.definition import catalogue, get_golden_function
from ttmesh.ops.pool.pooling import avg_pool2d, global_avg_pool2d, max_pool2d
from ttmesh.ops.pool.resample import grid_sample, rotate, upsample

golden_maxpool2d = get_golden_function(max_pool2d)
golden_avg_pool2d = get_golden_function(avg_pool2d)
golden_global_avg_pool2d = get_golden_function(global_avg_pool2d)
golden_adaptive_avg_pool2d = get_golden_function(catalogue["ttnn.adaptive_avg_pool2d"].function)
golden_adaptive_max_pool2d = get_golden_function(catalogue["ttnn.adaptive_max_pool2d"].function)
golden_upsample = get_golden_function(upsample)
golden_grid_sample = get_golden_function(grid_sample)
golden_rotate = get_golden_function(rotate)
