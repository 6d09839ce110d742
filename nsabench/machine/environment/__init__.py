"""What this machine is: hardware, driver, software, and what is wrong with it."""
