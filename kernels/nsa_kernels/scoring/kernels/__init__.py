"""Device code that scores and selects blocks."""
