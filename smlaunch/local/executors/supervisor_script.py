"""Script that a fresh `python -I -S` runs: the process that starts a host and supervises it from outside, or
the one that opens a shell in it."""

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

    kind, *numbers = sys.argv[1:]
    if kind == "shell":
        from smlaunch.local.executors.host_shell import run_shell

        run_shell(int(numbers[0]))
    elif kind == "container":
        from smlaunch.local.executors.container_supervisor import main
    else:
        from smlaunch.local.executors.host_supervisor import main

    main(*map(int, numbers))
