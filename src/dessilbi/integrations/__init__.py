"""Adapters for training frameworks, a module each; each is imported only when it is used.

``dessilbi.integrations.hf`` (Hugging Face Trainer), ``.lightning`` and ``.timm``. Accelerate needs
none: its wrappers are looked through.
"""
