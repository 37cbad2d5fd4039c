"""Secrets: find them in files, mask them in output."""
