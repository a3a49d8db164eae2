"""The command `leporello`, a file for a command or two: they parse options and print; the library does the work."""
