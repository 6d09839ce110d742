"""What every launch needs: argument checks, device limits, tuned tiles, room for shares."""
