"""Lists what each contract requirements, in its words: one module for each contract. A test finds each in `protos/`."""
