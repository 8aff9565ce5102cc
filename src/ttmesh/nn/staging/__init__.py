"""Internals of pipeline stages: schedules of micro-batches and links between stages; users import nn/stages."""
