"""The ``stowage`` command: arguments, logs, one module for each subcommand."""
