"""Helpers shared by tests of several packages."""
