"""verify-resume: a script run unsplit and cut in the midst, and what differs in the end."""
