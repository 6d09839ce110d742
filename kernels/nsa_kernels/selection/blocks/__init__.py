"""``block_selection_attention``: each query attends to blocks of keys that it chose."""
