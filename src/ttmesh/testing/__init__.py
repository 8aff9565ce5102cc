"""Testing with ttmesh: a drop-in for TT-NN test suites, and a pytest plugin for your own programs."""
