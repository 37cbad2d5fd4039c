"""The command line: parse, call, print. The only package that knows both launching and the local endpoint."""
