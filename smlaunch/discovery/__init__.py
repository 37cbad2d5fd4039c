"""Read a script, its source folder, its data and the account once; change nothing."""
