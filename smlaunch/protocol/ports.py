"""Which port of a job is whose: one place, so that nobody takes another's.

A job has BLOCK ports from its first one on: ``port`` of job.json, or SMLAUNCH_PORT where several jobs share
one network. Hosts of a job may share one as well, so what runs on more than one host counts its own port by
the host's index (the references ``own_port`` and ``each_endpoint``).
"""

BLOCK = 64
"""How many ports in a row a shared network keeps free for a job; one with a network of its own has all."""

RENDEZVOUS = 0
"""MASTER_PORT, on the leader."""

LINK = 1
"""Where the leader's runtime is followed by those of hosts without ranks, on the leader."""

AGENT = 2
"""Where the runtime of each host is asked to start an MPI job's processes, on the host's own address."""

SERVICES = 4
"""The first of those for a strategy's own servers, one for each, on the leader."""

HOSTS = 8
"""The first of those that differ from host to host."""

MORE_HOSTS = 36
"""The same for a second server on every host. Up to 28 hosts of one job can share a network so."""
