"""The validator that botocore lacks: all limits of the API model, and rules from its documentation.

Pure. The client checks its requests before sending them, and the local endpoint checks what it receives by
the same tables, so that a request accepted by one is accepted by the other.
"""
