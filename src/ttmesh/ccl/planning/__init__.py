"""From a collective call to a plan of transfers, its traffic and its execution; the algorithms are in ccl/algorithms."""
