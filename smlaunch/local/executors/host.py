"""Run as a script by a fresh `python -I -S`: the process outside a host that starts and watches it."""

# ruff: noqa: PTH100, PTH118, PTH120
import os
import sys

if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    # -I -S leaves only the standard library on the path. Stand-ins for the packages above, instead of the
    # packages: what those import would take longer than all that this process does (20 of 37 ms).
    for depth, name in enumerate(("smlaunch.local.executors", "smlaunch.local", "smlaunch")):
        package = type(sys)(name)
        package.__path__ = [os.path.normpath(os.path.join(here, *[os.pardir] * depth))]
        sys.modules[name] = package

    kind, lifeline, report = sys.argv[1:]
    if kind == "container":
        from smlaunch.local.executors.containers_supervisor import main
    else:
        from smlaunch.local.executors.supervisor import main

    main(int(lifeline), int(report))
