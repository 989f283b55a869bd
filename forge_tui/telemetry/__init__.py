"""GPU and CPU samples, taken by a small process of its own so that a hung driver freezes nothing else."""
