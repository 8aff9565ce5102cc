"""What the examples share: where they are, how a model is placed on a mesh, progress and curves of a training run."""
