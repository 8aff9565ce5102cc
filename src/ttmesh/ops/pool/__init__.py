"""Pools, resampling and colour conversion of channels-last images."""
