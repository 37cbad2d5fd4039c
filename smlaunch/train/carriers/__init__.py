"""How a checkpoint directory gets to S3 and back: one file per way, each a ``store.Carrier``."""
