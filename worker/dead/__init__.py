"""Dead letters: evaluations given up, how they are found, chosen again, taken up by themselves, and cut off."""
