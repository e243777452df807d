"""Many runs, several at a time."""
