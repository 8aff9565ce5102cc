"""Models: parameters from torch, pipelines, parallel layers, gradients, optimisers."""
