"""Which port of a job is used for what.

A job has PORTS_PER_JOB ports from its first one on: ``port`` of job.json, or SMLAUNCH_PORT where several jobs
share one network. Hosts of a job may share a network too, so a server that runs on more than one host adds
the host's index to its port (the references ``own_port`` and ``each_endpoint``). All constants but
PORTS_PER_JOB are offsets from the first port.
"""

PORTS_PER_JOB = 64
"""Consecutive ports that a shared network reserves for a job."""

RENDEZVOUS_PORT = 0
"""MASTER_PORT, on the leader."""

CONTROL_CHANNEL_PORT = 1
"""The control channel, on the leader: hosts without ranks follow it."""

EXEC_AGENT_PORT = 2
"""The agent of each host, which starts an MPI job's processes, on the host's own address."""

FIRST_SERVICE_PORT = 4
"""The first port of a strategy's own servers on the leader."""

FIRST_HOST_PORT = 8
"""The first port of a server on every host: the host's index is added."""

SECOND_HOST_PORT = 36
"""The same for a second server on every host: at most 28 hosts of one job can share a network."""
