"""What an account needs for smlaunch: a role, permissions, a bucket, a quota; in three languages."""
