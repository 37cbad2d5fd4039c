"""Ranks that the leader's mpirun starts, on all hosts. Only in the archives of jobs whose launcher is mpi.

- mpirun.py: the entry; prepares the host, finds the MPI, and reads how the ranks ended.
- mpirun_args.py: which MPI it is, and the arguments that make it start ranks on the job's hosts.
- host_program.py: one process on every host, an mpi_leader.py or an mpi_follower.py.
- mpi_host.py: what these two have in common.
- exec_agent.py: runs on a host what the leader asks for, in the place of sshd.
- rsh.py: what mpirun calls in the place of ssh; it asks the agent of another host.
- rank_wrapper.py: what mpirun starts as each rank; gives it its host's environment and output.
- local_ranks.py: what a host's ranks print, and how they exit.
- report.py: one report of how the ranks of all hosts ended.
"""
