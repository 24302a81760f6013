"""Record and replay of autotuned configs: codec (text form), record (the file), view (the tuner's cache)."""
