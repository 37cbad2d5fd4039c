"""How long data takes to read from where it lies, and where it should lie. Pure."""
