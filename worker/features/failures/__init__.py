"""What fails alike: the reasons of failing verdicts in themes, by their words or by a model."""
