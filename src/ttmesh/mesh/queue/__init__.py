"""Command queues, events, schedules, traces and the program cache; TT-NN's functions on them are in mesh/functions."""
