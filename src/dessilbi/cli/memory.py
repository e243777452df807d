"""The C library's allocator, told to keep the memory that every training step frees."""

from __future__ import annotations

import ctypes

# <malloc.h> of the GNU C library.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE, _LARGE_IN_OLD_VERSIONS = 2**30, 2**25
_LARGEST_INT = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, up to two gigabytes, instead of handing it back.

    Activations and gradients are freed in every step and asked for again in the next. By default
    the GNU C library returns blocks of their size to the system, which clears each page anew: up to
    a quarter of a small network's step on a CPU (benchmarks/memory.py). Other libraries are left as
    they are.

    Returns:
        Whether the C library could be told.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    if not mallopt(_M_MMAP_THRESHOLD, _LARGE):
        mallopt(_M_MMAP_THRESHOLD, _LARGE_IN_OLD_VERSIONS)
    return bool(mallopt(_M_TRIM_THRESHOLD, _LARGEST_INT))
