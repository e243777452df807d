"""The one error of this room."""

from dessilbi.errors import DessilbiError


class CompactError(DessilbiError, ValueError):
    """A network that cannot be made smaller exactly as asked; the message names what and why."""
