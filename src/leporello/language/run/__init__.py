"""A run on disk: its folder, its metrics and its checkpoints."""
