"""The front of the local endpoint: HTTP, signatures, and the dispatch of requests to services."""
