"""A mark for tests of the fused step on CPU, which needs a C++ compiler."""

import os
import shutil

import pytest

needs_compiler = pytest.mark.skipif(
    not (os.environ.get("CXX") or any(map(shutil.which, ("g++", "c++", "clang++")))),
    reason="no C++ compiler: fused=True on CPU cannot be built",
)
