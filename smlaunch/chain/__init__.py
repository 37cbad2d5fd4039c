"""What comes after each job of a run: the stored workflow and the next action. Pure."""
