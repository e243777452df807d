"""The nets of the paper, by name or by import path, and their initial weights."""

from dessilbi.lab.models.init import initialize
from dessilbi.lab.models.registry import MODELS, make_model
from dessilbi.lab.models.task import ModelError

__all__ = ["MODELS", "ModelError", "initialize", "make_model"]
