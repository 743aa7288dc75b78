"""Damage in shards, and copies without it.

``verifying.py`` finds damage, ``checks.py`` looks into fields, and ``repairing.py`` writes the copies.
"""
