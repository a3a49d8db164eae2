"""The command `leporello`, one file per command: parsing and printing; the work is done by the library."""
