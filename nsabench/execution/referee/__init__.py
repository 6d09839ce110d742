"""A process that draws inputs and judges outputs, and never imports the code that made them."""
