"""Testing with ttmesh: the drop-in for TT-NN test suites, and a pytest plugin for programs of one's own."""
