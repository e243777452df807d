"""``python -m dessilbi``, for torchrun among others."""

from dessilbi.cli import main

main()
