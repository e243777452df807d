"""Export to ONNX, and a comparison of what onnxruntime makes of it with torch."""

from __future__ import annotations

import logging
import warnings
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dessilbi._disk import write_whole
from dessilbi.graph.compare import random_like
from dessilbi.graph.example import as_arguments

if TYPE_CHECKING:
    from collections.abc import Callable


def export_onnx(model: nn.Module, file: str | Path, example_input: Any) -> int:
    """Write a network as one ONNX file with a free batch size; returns its size in bytes.

    Args:
        model: exported in evaluation mode; a copy is used.
        file: written whole or not at all.
        example_input: a batch, or a tuple of arguments whose first is one.

    Raises:
        ModuleNotFoundError: onnx or onnxscript is missing (``pip install 'dessilbi[compact]'``).
    """
    import onnx  # noqa: F401 - to say at once what is missing
    import onnxscript  # noqa: F401

    arguments = as_arguments(example_input)
    examples = len(arguments[0])
    # Two examples: with one the exporter would take the batch size for fixed.
    several = random_like(arguments, examples=2)
    batch = torch.export.Dim("batch")
    shapes = tuple(
        {0: batch} if isinstance(a, Tensor) and a.ndim and len(a) == examples else None
        for a in arguments
    )
    plain = deepcopy(model).eval().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    with warnings.catch_warnings(), _quiet("torch.onnx", "onnxscript", "onnx_ir"):
        warnings.simplefilter("ignore")  # of the exporter's own making
        program = torch.onnx.export(
            plain, several, dynamo=True, dynamic_shapes=shapes, verbose=False, optimize=True
        )
    assert program is not None
    content = program.model_proto.SerializeToString()
    write_whole(Path(file), content)
    return len(content)


def run_onnx(file: str | Path, threads: int | None = None) -> Callable[..., list[Tensor]]:
    """A function that runs an ONNX file with onnxruntime on the CPU, tensors in and out.

    Args:
        file: the network.
        threads: threads of onnxruntime; by default those of torch.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(file), sess_options=options, providers=["CPUExecutionProvider"]
    )
    return partial(_run, session, [i.name for i in session.get_inputs()])


def _run(session: Any, names: list[str], *arguments: Tensor) -> list[Tensor]:
    inputs = {name: a.detach().numpy() for name, a in zip(names, arguments, strict=True)}
    return [torch.from_numpy(found) for found in session.run(None, inputs)]


class _quiet:  # noqa: N801 - reads as a word
    """Keep loggers from talking about what went well."""

    def __init__(self, *names: str) -> None:
        self.loggers = [logging.getLogger(name) for name in names]

    def __enter__(self) -> None:
        self.levels = [logger.level for logger in self.loggers]
        for logger in self.loggers:
            logger.setLevel(logging.ERROR)

    def __exit__(self, *_: object) -> None:
        for logger, level in zip(self.loggers, self.levels, strict=True):
            logger.setLevel(level)
