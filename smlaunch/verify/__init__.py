"""verify-resume: runs a script with and without cuts, and compares the results."""
