"""What a release consists of, made without a container engine: `python -m deploy.release DIRECTORY`."""
