"""`python -m leporello` is the command `leporello`."""

from leporello.cli.main import main

if __name__ == "__main__":
    main()
