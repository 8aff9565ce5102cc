"""TT-NN's `graph_report`: JSON reports of graph captures become a database that ttnn-visualizer opens.

The captures themselves are in `ops/graph/`; the tables in `monitor/exports/report_schema.py`.
"""
