"""Script that a fresh `python -I -S` runs: the process that starts a host and supervises it from outside."""

# ruff: noqa: PTH100, PTH118, PTH120
import os
import sys

if __name__ == "__main__":
    script_folder = os.path.dirname(os.path.abspath(__file__))
    # With -I -S, only the standard library is on the path. Empty modules replace the parent packages, whose
    # imports would take longer than everything else in this process (20 of 37 ms).
    for depth, name in enumerate(("smlaunch.local.executors", "smlaunch.local", "smlaunch")):
        package = type(sys)(name)
        package.__path__ = [os.path.normpath(os.path.join(script_folder, *[os.pardir] * depth))]
        sys.modules[name] = package

    supervisor_kind, liveness_fd, report_fd = sys.argv[1:]
    if supervisor_kind == "container":
        from smlaunch.local.executors.container_supervisor import main
    else:
        from smlaunch.local.executors.host_supervisor import main

    main(int(liveness_fd), int(report_fd))
