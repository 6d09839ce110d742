"""Take samples: one timer a device, rounds of interleaved arms, stopping rules, bursts."""
