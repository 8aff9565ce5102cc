"""From a collective call to a plan of transfers, its traffic, and carrying it out; the algorithms are in ccl/algorithms."""
