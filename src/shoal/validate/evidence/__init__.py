"""What a verdict leaves behind: bundles that anyone can replay, votes, and rulings on challenges."""
