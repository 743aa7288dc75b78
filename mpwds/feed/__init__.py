"""Feeding training from other processes and machines."""
