"""The one error of this room, and the check of an image's side that every net shares."""

from dessilbi.errors import DessilbiError


class ModelError(DessilbiError, ValueError):
    """A model cannot be found, built or initialised as asked; the message names the way out."""


def require_side(name: str, input_size: int, smallest: int) -> None:
    """Refuse images so small that a layer of the net would have nothing left to read.

    Args:
        name: The net, as the registry calls it.
        input_size: Side of the square images.
        smallest: The smallest side the net accepts.

    Raises:
        ModelError: If ``input_size < smallest``.
    """
    if input_size < smallest:
        raise ModelError(
            f"{name} needs input_size >= {smallest}, got {input_size}; "
            "pad or resize the images, or choose a net with fewer poolings"
        )
