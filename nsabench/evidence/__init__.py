"""What makes a run worth believing elsewhere: the signed manifest and the archive."""
