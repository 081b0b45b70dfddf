"""What README and docs/ tell a reader to type: found, classified, run or checked."""
