"""What the local endpoint stores: objects, logs, metrics and jobs."""
