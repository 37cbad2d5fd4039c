"""What a plan may know about the world: gathered by discovery, read by the planner. Pure."""
