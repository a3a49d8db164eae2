"""The command `leporello`, one file per command: they parse options and print; the library does the work."""
