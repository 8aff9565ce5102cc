"""Dry runs: a program on chips without values. What it allocates, compiles and moves is real, what it computes is not.

`host_tensors` keeps large tensors of the host without values too, `memory_log` records what the chips hold, `run_report`
says whether it fits and who holds what; `report_page` draws it. The command is `ttmesh dry-run`.
"""
