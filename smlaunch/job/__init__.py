"""The job: what the user wants to run."""
