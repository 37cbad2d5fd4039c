"""The process of one host in an MPI program: reads its configuration, runs as leader or follower, and writes
the report for the runtime that started it.
"""

import json
import os
import sys

from smlaunch.runtime.errors import SetupError
from smlaunch.runtime.mpi.mpi_follower import MpiFollower
from smlaunch.runtime.mpi.mpi_host import CONFIG_FILE, REPORT_FILE, MpiHostConfig
from smlaunch.runtime.mpi.mpi_leader import MpiLeader
from smlaunch.runtime.mpi.report import MpiReport
from smlaunch.runtime.signals import SignalQueue


def main(signals: SignalQueue, folder: str) -> int:
    """Supervise this host's ranks of an MPI program and write the report. ``folder``: has the configuration.
    Returns 0, also where the report says that the program could not be started.
    """
    signals.install()
    signals.defer()
    with open(os.path.join(folder, CONFIG_FILE), encoding="ascii") as file:
        config = MpiHostConfig(**json.load(file))
    host_class = MpiLeader if config.host == config.leader else MpiFollower
    try:
        report = host_class(config, folder, signals).run()
    except SetupError as error:
        report = MpiReport((), None, str(error))
    path = os.path.join(folder, REPORT_FILE)
    with open(path + ".tmp", "w", encoding="ascii") as file:
        json.dump(report.to_document(), file)
    os.replace(path + ".tmp", path)
    return 0


def start() -> None:
    code = main(SignalQueue(), sys.argv[1])
    os._exit(code)  # threads may still be waiting
