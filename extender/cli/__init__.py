"""The ``stowage`` command: arguments, logging, one module for each subcommand."""
