"""What can be learned from a finished run."""
