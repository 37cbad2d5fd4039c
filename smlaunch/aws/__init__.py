"""Interfaces and adapters for the API and S3."""
