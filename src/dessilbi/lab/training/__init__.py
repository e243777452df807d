"""The training loop and what goes along with it."""
