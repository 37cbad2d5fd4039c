"""A plan as text, HTML or a JSON document. Nothing of the planner imports this package."""
