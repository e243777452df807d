"""The one error of this room."""


class CompactError(ValueError):
    """A network that cannot be made smaller exactly as asked; the message names what and why."""
