"""The documentation: its commands parse, and run."""
