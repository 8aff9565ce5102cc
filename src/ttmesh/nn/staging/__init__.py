"""Pipeline stages inside: schedules of micro-batches and links between stages; users import nn/stages."""
