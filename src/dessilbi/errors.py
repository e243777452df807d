"""The base class of every error of this package."""


class DessilbiError(Exception):
    """Something cannot be done as asked; the message says what, why and the way out."""
