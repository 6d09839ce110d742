"""The matrices that ship, as package data."""
