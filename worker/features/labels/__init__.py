"""Labels by people, the judges' agreement with them, and corrected shares."""
