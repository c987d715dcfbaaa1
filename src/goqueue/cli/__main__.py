"""`python -m goqueue.cli`: the command where its script is not on the path, or was moved."""

from goqueue.cli.main import main

if __name__ == "__main__":  # the demo's child process imports this module, too
    main()
