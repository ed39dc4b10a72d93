"""The version of kit. It lives here so that no package imports the root package; hatch reads it from this file."""

__version__ = "0.2.0"
