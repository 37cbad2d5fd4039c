"""The service's API as data: requests and their validation."""
