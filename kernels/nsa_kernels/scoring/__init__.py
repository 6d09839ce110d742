"""Which blocks are worth selecting: block scores, and the best n of them."""
