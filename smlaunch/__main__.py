"""``python -m smlaunch``: the command line."""

from smlaunch.cli.main import main

if __name__ == "__main__":
    main()
