"""Running a workload: cores, kernels as coroutines, the APIs kernels call, and the check of their synchronisation."""
