"""The collectives by name: all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, point_to_point, halos."""
