"""A run: its configuration, directory and checkpoints."""
