"""A soak of the whole stack: pods come and go, faults come every few seconds, and invariants are checked."""
