"""Lists what each contract promises, in its words: one module for each contract. A test finds each in `protos/`."""
