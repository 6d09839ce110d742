"""Take samples: timers for each device, rounds of interleaved arms, stopping rules, bursts."""
