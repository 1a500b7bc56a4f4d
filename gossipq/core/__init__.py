"""Pure decisions: no I/O, clock, randomness or logging. Values and tables come in, effects go out."""
