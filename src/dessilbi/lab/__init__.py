"""The laboratory: data, models, configurations and training runs (needs the ``lab`` extra)."""
