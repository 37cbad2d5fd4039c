"""Connections to a region or to the endpoint on this machine."""
