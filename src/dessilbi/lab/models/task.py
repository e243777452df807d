"""What a net is asked to do, and the one error of this room."""

from typing import NamedTuple

from dessilbi.errors import DessilbiError


class ModelError(DessilbiError, ValueError):
    """A model cannot be found, built or initialised as asked; the message names the way out."""


class Task(NamedTuple):
    """What every net of the registry is a function of."""

    num_classes: int
    """Outputs; of a text its characters."""
    in_channels: int
    """Channels of the images; 0 for a text."""
    input_size: int
    """Side of the square images; of a text the characters of a window."""
