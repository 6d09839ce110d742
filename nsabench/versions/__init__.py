"""The same matrices under several Tritons on this host, without containers."""
