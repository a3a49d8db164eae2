"""`python -m leporello` is the command `leporello`."""

from leporello_command import main

if __name__ == "__main__":
    main()
