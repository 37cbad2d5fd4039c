"""The command line: parse, call, print. The one room that knows both launching and the local endpoint."""
