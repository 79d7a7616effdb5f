"""Results that a person can look at."""
